"""The URLs that `connect` takes, and what an in-process server behind one is."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs, urlsplit

from redis import asyncio as redis

from symfonic_redis.errors import ConfigurationError

SCHEMES = "redis://, rediss://, unix://, embedded://, embedded:///path, fake://"

MAX_PORT = 65_535

_fakes: dict[str, Any] = {}


def read_url(url: str) -> tuple[str, str]:
    """Return scheme and host or path of a URL, checked.

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
