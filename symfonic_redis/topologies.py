"""What leads to a deployment's data: made from a URL or from a client, whatever stands behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from redis import asyncio as redis
from redis import exceptions as driver
from redis.asyncio.cluster import RedisCluster
from redis.asyncio.connection import SSLConnection, parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import (
    SentinelConnectionPool,
    SentinelManagedConnection,
    SentinelManagedSSLConnection,
)
from redis.backoff import NoBackoff
from redis.maint_notifications import MaintNotificationsConfig

from symfonic_redis.cluster import Cluster
from symfonic_redis.embedded import EmbeddedServer
from symfonic_redis.errors import ConfigurationError
from symfonic_redis.routing import Address
from symfonic_redis.sentinel import SentinelPool
from symfonic_redis.urls import Many, embedded_port, fake_pool, read_many, read_url
from symfonic_redis.wire import Line, Wire

# What a client of a cluster is told of the cluster or of itself, and its nodes' connections are not.
UNREADABLE = "the URL cannot be read: write it as redis://user:password@host:port/db"
"""What is said of a URL, which is never quoted: it may hold a password."""

_CLIENTS_OWN = ("connection_class", "max_connections", "redis_connect_func", "response_callbacks", "himport_registry")


Target = str | redis.Redis | RedisCluster
"""What `connect` takes."""


class Limits(NamedTuple):
    """What is chosen about connections.

    Attributes:
        connections: at a time, to one server.
        connect: seconds in which one must be made.
        replicas: whether replicas are read from.
        coalesce: whether calls share a connection, of those that are ours.
    """

    connections: int
    connect: float
    replicas: bool
    coalesce: bool


class Reach(NamedTuple):
    """What leads to the data.

    Attributes:
        topology: `standalone`, `cluster` or `sentinel`.
        endpoint: where it leads, without credentials.
        attributes: the same for telemetry.
        masters: for writes, and for reads that must be of now.
        replicas: for other reads; None when they go to the masters too.
    """

    topology: str
    endpoint: str
    attributes: dict[str, str | int]
    masters: Line
    replicas: Line | None = None


def reach(target: Target, limits: Limits) -> Reach | tuple[str, str]:
    """What a URL or a client leads to; scheme and path of a URL whose server is yet to be `started`.

    A client of one server, or behind sentinels, is used through its own pool; a client of a cluster tells where the
    cluster is, and the connections are ours.

    Raises:
        ConfigurationError: it cannot be read, is no client, or asks for replicas where there are none to be found.
    """
    if isinstance(target, str):
        if any("\ud800" <= char <= "\udfff" for char in target):
            raise ConfigurationError(UNREADABLE)  # a lone surrogate has no bytes
        many = read_many(target)
        if many is None:
            scheme, path = read_url(target)
            if scheme in ("embedded", "fake"):
                return scheme, path
        return _reach_url(target, many, limits)
    if isinstance(target, RedisCluster):
        return _reach_cluster_of(target, limits)
    if isinstance(target, redis.Redis):
        return _reach_pool(target.connection_pool, limits, owned=False)
    raise refused(target)


async def started(url: str, limits: Limits) -> tuple[Reach, EmbeddedServer | None]:
    """Start what an `embedded://` or `fake://` URL names; return what leads to it."""
    parts = urlsplit(url)
    if parts.scheme == "fake":
        # fakeredis invents a host name: it leads nowhere.
        return _reach_pool(fake_pool(parts.netloc), limits, owned=True, address="fake"), None
    server = await EmbeddedServer.start(unquote(parts.path) or None, port=embedded_port(parts.query))
    return _reach_url(f"unix://{server.socket_path}", None, limits), server


def refused(target: object) -> ConfigurationError:
    """The error for what is no connection."""
    return ConfigurationError(
        f"a {type(target).__name__} is no connection: pass what connect() returns, or a redis.asyncio.Redis client"
    )


def _reach_url(url: str, many: Many | None, limits: Limits) -> Reach:
    # Refused outside the handler: the driver's message may quote the URL, and with it the password.
    with suppress(ValueError, TypeError, driver.RedisError):
        return _reach_one(url, limits) if many is None else _reach_many(many, limits)
    raise ConfigurationError(UNREADABLE)


def _reach_cluster_of(client: RedisCluster, limits: Limits) -> Reach:
    given = client.connection_kwargs
    options = {name: value for name, value in given.items() if name not in _CLIENTS_OWN and value is not None}
    if issubclass(given["connection_class"], SSLConnection):
        options["connection_class"] = SSLConnection
    addresses = [(str(node.host), int(node.port)) for node in client.nodes_manager.startup_nodes.values()]
    return _cluster(addresses, {**options, **_ours(limits)}, limits)


def _reach_pool(pool: redis.ConnectionPool, limits: Limits, *, owned: bool, address: str = "") -> Reach:
    """What a pool leads to. `address` is named instead of the host that it has."""
    if isinstance(pool, SentinelConnectionPool):
        known = [sentinel.connection_pool.connection_kwargs for sentinel in pool.sentinel_manager.sentinels]
        addresses = [(str(one.get("host")), int(one.get("port"))) for one in known]
        name, db = str(pool.service_name), pool.connection_kwargs.get("db")
        _no_replicas(limits)
        return _behind(name, addresses, db, _wire(pool, limits, owned=owned))
    _no_replicas(limits)
    options = pool.connection_kwargs
    place = address or str(options.get("path") or options.get("host") or "localhost")
    attributes: dict[str, str | int] = {"db.namespace": str(options.get("db") or 0), "server.address": place}
    endpoint = place
    if "path" not in options and not address:
        port = attributes["server.port"] = int(options.get("port") or 6379)
        endpoint = f"{place}:{port}"
    return Reach("standalone", endpoint, attributes, _wire(pool, limits, owned=owned))


def _wire(pool: redis.ConnectionPool, limits: Limits, *, owned: bool) -> Wire:
    # A client of the user's has few connections, maybe, and its own way with them: none is kept.
    shared = owned and limits.coalesce
    return Wire(pool, limits.connections, owned=owned, patience=limits.connect, shared=shared)


def _reach_one(url: str, limits: Limits) -> Reach:
    options = _ours(limits)
    if url.startswith("unix:"):
        del options["socket_keepalive"]
    del options["maint_notifications_config"]  # the driver's own choice: there is one address to follow
    _check_files(parse_url(url))
    pool = redis.ConnectionPool.from_url(url, max_connections=limits.connections, **options)
    pool.connection_class(**pool.connection_kwargs)  # an option that is unknown shows itself only here
    return _reach_pool(pool, limits, owned=True)


def _reach_many(many: Many, limits: Limits) -> Reach:
    options: dict[str, Any] = {**_ours(limits), **parse_url(many.url)}
    del options["host"]
    _check_files(options)
    if many.kind == "cluster":
        if options.pop("db", 0):
            raise ConfigurationError("a cluster has one database: leave it out of the URL, as redis+cluster://host")
        return _cluster(many.addresses, options, limits)
    secure = options.pop("connection_class", None) is not None
    tls = {name: value for name, value in options.items() if secure and name.startswith("ssl_")}
    credentials: dict[str, Any] = {**many.sentinel, **tls, **({"ssl": True} if secure else {})}
    options["connection_class"] = SentinelManagedSSLConnection if secure else SentinelManagedConnection

    def wire(*, is_master: bool) -> Wire:
        options.setdefault("max_connections", limits.connections)
        pool = SentinelPool(many.name, many.addresses, credentials, is_master=is_master, **options)
        pool.connection_class(**pool.connection_kwargs)
        return _wire(pool, limits, owned=True)

    replicas = wire(is_master=False) if limits.replicas else None
    return _behind(many.name, many.addresses, options.get("db"), wire(is_master=True), replicas)


def _behind(name: str, addresses: Sequence[Address], db: object, masters: Wire, replicas: Wire | None = None) -> Reach:
    host, port = addresses[0]
    attributes: dict[str, str | int] = {"db.namespace": str(db or 0), "server.address": host, "server.port": port}
    return Reach("sentinel", f"{name} behind {_listed(addresses)}", attributes, masters, replicas)


def _cluster(addresses: Sequence[Address], options: dict[str, Any], limits: Limits) -> Reach:
    options.setdefault("max_connections", limits.connections)

    def wire_to(**more: Any) -> Callable[[Address], Wire]:
        def wire(address: Address) -> Wire:
            pool = redis.ConnectionPool(host=address[0], port=address[1], **options, **more)
            return _wire(pool, limits, owned=True)

        return wire

    redis.ConnectionPool(host="localhost", **options).make_connection()  # type: ignore[no-untyped-call]  # an unknown option shows itself only here
    host, port = addresses[0]
    attributes: dict[str, str | int] = {"db.namespace": "0", "server.address": host, "server.port": port}
    replicas = Cluster(addresses, wire_to(redis_connect_func=_ready), from_replicas=True) if limits.replicas else None
    return Reach("cluster", _listed(addresses), attributes, Cluster(addresses, wire_to()), replicas)


async def _ready(connection: Any) -> None:
    """Let a replica of a cluster answer reads on this connection."""
    await connection.on_connect()
    await connection.send_command("READONLY")
    await connection.read_response()


def _ours(limits: Limits) -> dict[str, Any]:
    return {
        "socket_timeout": None,  # each attempt has its own time-out
        "socket_connect_timeout": limits.connect,
        "retry": Retry(NoBackoff(), 0),
        "socket_keepalive": True,
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),  # the map of the cluster decides
    }


def _check_files(options: Mapping[str, Any]) -> None:
    """Refuse files that are not there: when connecting, one looks like a server that is away."""
    for name in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile"):
        if name in options and not Path(str(options[name])).is_file():
            raise ConfigurationError(f"the file that {name} in the URL names is not there: correct the path")


def _no_replicas(limits: Limits) -> None:
    if limits.replicas:
        raise ConfigurationError(
            'read_from="replica" needs redis+cluster:// or redis+sentinel://: connect with one of them, or to the '
            "replica itself"
        )


def _listed(addresses: Sequence[Address]) -> str:
    return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in addresses)
