"""Fixtures: a table of servers, a deployment under a prefix of its own for each test, scopes, entries."""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from hypothesis import HealthCheck, settings
from servers import BINARIES, Server, binary
from topologies import MAKERS, Topology

from symfonic_redis import Deployment, MemoryEntry, TenantScope, connect

settings.register_profile("dev", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


@pytest.fixture(scope="session")
def servers() -> Iterator[Callable[[str], Server]]:
    """Start each backend once, when it is first asked for."""
    running: dict[str, Server] = {}

    def server(name: str) -> Server:
        if name not in running:
            running[name] = Server(binary(name))
        return running[name]

    yield server
    for one in running.values():
        one.stop()


@pytest.fixture(params=list(BINARIES))
def server(request: pytest.FixtureRequest, servers: Callable[[str], Server]) -> Server:
    """Each backend in turn. A test that needs one only takes `valkey`."""
    return servers(request.param)


@pytest.fixture
def valkey(servers: Callable[[str], Server]) -> Server:
    """The backend that is always there."""
    return servers("valkey")


@pytest.fixture(scope="session")
def topologies() -> Iterator[Callable[[str], Topology]]:
    """Start each topology once, when it is first asked for."""
    running: dict[str, Topology] = {}

    def topology(name: str) -> Topology:
        if name not in running:
            running[name] = MAKERS[name]()
        return running[name]

    yield topology
    for one in running.values():
        one.stop()


@pytest.fixture(params=list(MAKERS))
def topology(request: pytest.FixtureRequest, topologies: Callable[[str], Topology]) -> Topology:
    """Each topology in turn."""
    return topologies(request.param)


@pytest.fixture
async def anywhere(topology: Topology, prefix: str) -> AsyncIterator[Deployment]:
    """A deployment on each topology in turn, with a feed."""
    async with connect(topology.url, prefix=prefix, feed=1000) as deployment:
        yield deployment


@pytest.fixture
def prefix() -> str:
    """A prefix that no other test uses: tests share servers and never flush them."""
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture
async def redis(server: Server, prefix: str) -> AsyncIterator[Deployment]:
    """A deployment on each backend in turn."""
    async with connect(server.url, prefix=prefix) as deployment:
        yield deployment


@pytest.fixture
async def one_redis(valkey: Server, prefix: str) -> AsyncIterator[Deployment]:
    """A deployment on the backend that is always there."""
    async with connect(valkey.url, prefix=prefix) as deployment:
        yield deployment


@pytest.fixture
def scope() -> TenantScope:
    return TenantScope.root("org", "acme").child("conversation", "c-123")


@pytest.fixture
def turn(scope: TenantScope) -> Callable[..., MemoryEntry]:
    """Make turns of `scope`, numbered: `turn()`, `turn("text", speaker="assistant", importance=7)`."""
    numbers = itertools.count(1)

    def make(content: str | None = None, **values: object) -> MemoryEntry:
        number = next(numbers)
        chosen = {"speaker": "user", "turn_id": f"t{number}", "content": content or f"turn {number}", **values}
        return MemoryEntry.turn(scope, **chosen)

    return make
