r"""The process that owns one embedded server: it starts it, and stops it when nobody uses it any more.

`embedded.py` runs this file by its path, isolated and without site-packages (`python -I -S`), so it must import the
standard library only and nothing of this package. That is what keeps its start near 40 ms. `embedded.py` also
imports it, for the functions under "shared with the client", so it must not run anything when imported.

Arguments
    binary      path of `valkey-server`
    data        the data directory; holds the lock files, the log and, when kept, the append-only file
    socket      path of the unix socket; its directory is ours alone
    port        TCP port on 127.0.0.1, 0 for none
    keep        `keep` to persist, `drop` to remove the data directory at the end

Answer on stdout, one line, then the pipe is closed
    ready           the server answers PING
    busy            another supervisor owns this data directory: look again
    error <reason>  the server did not come up

Lock files in the data directory (flock; never removed, because a removed lock file is a lock nobody shares)
    users.lock      shared by every process that uses the server; this process waits for it exclusively
    server.lock     exclusive for this process AND the server, which inherits it: free means that both are gone, so
                    two servers never write one append-only file. Its content is `port\nsocket path\n`.
    start.lock      not used here; clients take turns on it
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

with contextlib.suppress(ImportError):  # absent on Windows, where embedded.py must still be importable
    import fcntl

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

READY_PAUSE = 0.005  # seconds between two PINGs while the server comes up
STOP_LIMIT = 30.0  # seconds a server gets to finish after SIGTERM; the AOF is written by then, so SIGKILL loses nothing
LOG_LIMIT = 1 << 20  # bytes; a longer log is set aside as server.log.1 at the next start
PR_SET_PDEATHSIG = 1


class Task(NamedTuple):
    """The parsed arguments; see the module's docstring."""

    binary: str
    data: Path
    socket: Path
    port: int
    keep: bool

    @property
    def log(self) -> Path:
        """The server's log, which also takes what it prints."""
        return self.data / "server.log"


def main(arguments: list[str]) -> int:
    """Serve until the last user is gone or the server is; return the exit status."""
    binary, data, path, port, keep = arguments
    task = Task(binary, Path(data), Path(path), int(port), keep == "keep")
    os.umask(0o077)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # a caller's blocked SIGTERM would be inherited by the server
    lock = lock_file(task.data / "server.lock")
    if not take(lock, exclusive=True):
        say("busy")
        return 1
    try:
        lock.truncate(0)
        lock.write(f"{task.port}\n".encode() + os.fsencode(task.socket) + b"\n")
        serve(task, lock)
    except Exception as error:  # noqa: BLE001 - whatever it is, the client waits for one line
        say(f"error {type(error).__name__}: {error}")
        return 1
    finally:
        clean(task)
    return 0


def serve(task: Task, lock: io.FileIO) -> None:
    """Start the server, say how that went, and return when the server has ended, for whatever reason."""
    if task.log.exists() and task.log.stat().st_size > LOG_LIMIT:
        task.log.replace(task.data / "server.log.1")
    task.socket.unlink(missing_ok=True)
    with task.log.open("ab") as log:
        logged = log.tell()
        server = subprocess.Popen(  # noqa: S603 - our own wheel's binary
            command(task),
            cwd=task.data,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(lock.fileno(),),
            preexec_fn=die_with_parent(),  # noqa: PLW1509 - this process has no second thread yet
        )
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stopper(server))
    # Watched from now on, not from "ready": a client that gives up while a long AOF loads ends the attempt.
    threading.Thread(target=stop_without_users, args=(task, server), daemon=True).start()
    while server.poll() is None:
        if answers(task.socket):
            say("ready")
            break
        time.sleep(READY_PAUSE)
    else:
        say(f"error {reason(task.log, logged) or f'it ended with status {server.returncode}'}")
    server.wait()


def command(task: Task) -> list[str]:
    """Return the server's command line; paths other than the socket are relative to its working directory."""
    options = {
        "port": str(task.port),
        "bind": "127.0.0.1",
        "protected-mode": "yes",
        "unixsocket": str(task.socket),
        "unixsocketperm": "700",
        "save": "",
        "appendonly": "yes" if task.keep else "no",
        "appendfsync": "everysec",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
        "logfile": "server.log",
    }
    return [task.binary, *(word for name, value in options.items() for word in (f"--{name}", value))]


def die_with_parent() -> Callable[[], None] | None:
    """Return what makes the kernel send the child SIGTERM when this process dies, even by SIGKILL.

    Linux only. Elsewhere there is no such request: a server whose supervisor was killed by SIGKILL runs on, and the
    next start of the same directory joins it, but nobody will stop it. The signal follows the death of the THREAD
    that forked, so the server must be started by the main thread, which waits for it.
    """
    if not sys.platform.startswith("linux"):
        return None
    try:
        import ctypes  # noqa: PLC0415 - absent from some small builds of Python

        prctl = ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError):
        return None
    parent = os.getpid()

    def ask() -> None:
        prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:  # it died before the request
            os._exit(1)

    return ask


def stopper(server: subprocess.Popen[bytes]) -> Callable[[int, FrameType | None], None]:
    """Return a signal handler that stops the server; the main thread then sees it end and cleans up."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        server.terminate()

    return stop


def stop_without_users(task: Task, server: subprocess.Popen[bytes]) -> None:
    """Block until no process holds `users.lock`, then stop the server.

    The lock is kept until this process exits, so a client that arrives meanwhile waits for the end of it. The kernel
    drops the share of a process that was killed; no polling and no heartbeat is needed to notice that.
    """
    users = lock_file(task.data / "users.lock")
    fcntl.flock(users, fcntl.LOCK_EX)
    server.terminate()
    time.sleep(STOP_LIMIT)  # a daemon thread: the process usually exits long before
    server.kill()


def reason(path: Path, offset: int) -> str:
    """Return the last warning that the server logged after `offset`, without its time stamp; "" for none."""
    with path.open("rb") as log:
        log.seek(offset)
        lines = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    warnings = [line.split(" # ", 1)[1] for line in lines if " # " in line]
    return next(reversed([line for line in warnings if "overcommit" not in line] or lines[-1:]), "")


def clean(task: Task) -> None:
    """Remove the socket and its directory, and the data as well unless it is kept."""
    with contextlib.suppress(OSError):
        task.socket.unlink(missing_ok=True)
        if task.keep:
            task.socket.parent.rmdir()
    if not task.keep:
        shutil.rmtree(task.data, ignore_errors=True)


def say(line: str) -> None:
    """Answer the client and let go of its pipe."""
    with contextlib.suppress(OSError):  # the client may be dead; then nobody holds `users.lock` either
        os.write(1, " ".join(line.split()).encode(errors="replace") + b"\n")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.close(null)


# --- shared with the client ---


def answers(path: Path) -> bool:
    """Return whether the server answers PING; False too while it loads its data."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.settimeout(1.0)
            link.connect(os.fsencode(path))
            link.sendall(b"PING\r\n")
            return link.recv(64).startswith(b"+PONG")
    except OSError:
        return False


def lock_file(path: Path, flags: int = os.O_RDWR | os.O_CREAT) -> io.FileIO:
    """Open a lock file; programs that this process starts do not inherit it."""
    return io.FileIO(os.open(path, flags, 0o600), "r+")


def take(file: io.FileIO, *, exclusive: bool) -> bool:
    """Take the lock if it is free now; a lock that this file had before is given up in either case."""
    try:
        fcntl.flock(file, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def release(file: io.FileIO) -> None:
    """Unlock and close. Closing alone is not enough: a process forked meanwhile has the file, and the lock, too."""
    with file:
        fcntl.flock(file, fcntl.LOCK_UN)


def is_held(path: Path) -> bool:
    """Return whether someone has this lock exclusively; False where there is no such file."""
    try:
        file = lock_file(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    free = take(file, exclusive=False)
    release(file)
    return not free


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
