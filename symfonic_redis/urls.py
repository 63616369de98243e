"""The URLs that `connect` takes, and what an in-process server behind one is."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import parse_qs, parse_qsl, unquote, urlencode, urlsplit

from redis import asyncio as redis

from symfonic_redis.errors import ConfigurationError

SCHEMES = (
    "redis://, rediss://, unix://, redis+cluster://, rediss+cluster://, redis+sentinel://, rediss+sentinel://, "
    "embedded://, embedded:///path, fake://"
)

MAX_PORT = 65_535

_MANY = re.compile(
    r"(?P<scheme>rediss?)\+(?P<kind>cluster|sentinel)://((?P<user>[^/?#]*)@)?(?P<hosts>[^/?#@]+)"
    r"(/(?P<name>[^/?#]*)(/(?P<db>[0-9]*))?)?(\?(?P<query>[^#]*))?"
)
_HOST = re.compile(r"(?:\[(?P<ip>[0-9A-Fa-f:.]+)\]|(?P<host>[^:\[\]\s]+))(?::(?P<port>[0-9]{1,5}))?")
_PORTS = {"cluster": 6379, "sentinel": 26379}
_MALFORMED = {
    "cluster": "the URL cannot be read: write it as redis+cluster://user:password@host:port,host:port",
    "sentinel": "the URL cannot be read: write it as redis+sentinel://user:password@host:port,host:port/name/db",
}

_SENTINEL = ("sentinel_username", "sentinel_password")

_fakes: dict[str, Any] = {}


class Many(NamedTuple):
    """A URL that names several servers.

    Attributes:
        kind: `cluster` or `sentinel`.
        addresses: host and port of each.
        url: the same URL with one of them, as the driver reads it: credentials, database and options.
        name: of the service that the sentinels know; empty for a cluster.
        sentinel: credentials for the sentinels themselves.
    """

    kind: str
    addresses: list[tuple[str, int]]
    url: str
    name: str
    sentinel: dict[str, str]


def read_many(url: str) -> Many | None:
    """What a URL of a cluster or of sentinels says; None when it is of another kind.

    Raises:
        ConfigurationError: it cannot be read; the message never quotes it, since it may hold a password.
    """
    kind = url.partition("://")[0].partition("+")[2]
    if "://" not in url or kind not in _PORTS:
        return None
    found = _MANY.fullmatch(url)
    hosts = [_HOST.fullmatch(host) for host in found["hosts"].split(",")] if found else []
    if not found or not all(host and int(host["port"] or 1) in range(1, MAX_PORT + 1) for host in hosts):
        raise ConfigurationError(_MALFORMED[kind])
    name = unquote(found["name"] or "")
    # A cluster has one database, which may be named.
    if found["db"] if kind == "cluster" else not name:
        raise ConfigurationError(_MALFORMED[kind])
    if kind == "cluster" and name not in ("", "0"):
        raise ConfigurationError(_MALFORMED[kind])
    addresses = [(host["ip"] or host["host"], int(host["port"] or _PORTS[kind])) for host in hosts if host]
    options = parse_qsl(found["query"] or "", keep_blank_values=True)
    credentials = {key.removeprefix("sentinel_"): value for key, value in options if key in _SENTINEL}
    query = urlencode([(key, value) for key, value in options if key not in _SENTINEL])
    user = f"{found['user']}@" if found["user"] else ""
    single = f"{found['scheme']}://{user}localhost/{found['db'] or 0}?{query}"
    return Many(kind, addresses, single, name, credentials)


def read_url(url: str) -> tuple[str, str]:
    """Return scheme and host or path of a URL of one server, checked.

    Raises:
        ConfigurationError: it cannot be read; the message never quotes it, since it may hold a password.
    """
    parts = None
    with suppress(ValueError):  # its message would quote the host
        parts = urlsplit(url)
    if parts is None or "://" not in url:
        raise ConfigurationError("the URL cannot be read: write it as redis://user:password@host:port/db")
    if parts.scheme not in ("redis", "rediss", "unix", "embedded", "fake"):
        raise ConfigurationError(f"the URL's scheme {parts.scheme[:20]!r} is unknown: use one of {SCHEMES}")
    if parts.scheme == "embedded":
        if parts.netloc:
            raise ConfigurationError("write embedded:///absolute/path with three slashes, or embedded:// for no path")
        embedded_port(parts.query)
    if parts.scheme == "unix" and not parts.path.strip("/"):
        raise ConfigurationError("a unix URL names the socket: write it as unix:///run/redis.sock")
    if parts.scheme in ("redis", "rediss") and not re.fullmatch(r"(/[0-9]*)?", parts.path):
        raise ConfigurationError("the URL's database is no number: write it as redis://host:port/0")
    return parts.scheme, (parts.hostname if parts.scheme in ("redis", "rediss") else parts.path) or parts.scheme


def embedded_port(query: str) -> int:
    """The TCP port that an embedded URL asks for, as `?port=7000`; 0 for none.

    Raises:
        ConfigurationError: it asks for something else, or the port is none.
    """
    asked = parse_qs(query, keep_blank_values=True)
    port = asked.pop("port", ["0"])[0]
    if asked or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > MAX_PORT:
        raise ConfigurationError("an embedded URL takes one option, ?port=N with N up to 65535: correct it")
    return int(port)


def fake_pool(name: str) -> redis.ConnectionPool:
    """Connections to fakeredis: a server of their own, or the one of that name in this process.

    Raises:
        ConfigurationError: fakeredis is not installed.
    """
    try:
        from fakeredis import FakeServer  # noqa: PLC0415 - an extra, and slow to import
        from fakeredis.aioredis import FakeRedis  # noqa: PLC0415 - the same
    except ImportError as error:
        raise ConfigurationError("fake:// needs fakeredis: install symfonic-redis[embedded]") from error
    server = FakeServer() if not name else _fakes.setdefault(name, FakeServer())
    return FakeRedis(server=server).connection_pool
