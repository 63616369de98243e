"""The URLs that `connect` takes, and what an in-process server behind one is."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from redis import asyncio as redis

from symfonic_redis.errors import ConfigurationError

SCHEMES = "redis://, rediss://, unix://, embedded://, embedded:///path, fake://"

_fakes: dict[str, Any] = {}


def read_url(url: str) -> tuple[str, str]:
    """Return scheme and endpoint of a URL, or refuse it without quoting it: it may hold a password."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or parts.path or parts.scheme
    except ValueError:
        raise ConfigurationError("the URL cannot be read: write it as redis://user:password@host:port/db") from None
    if parts.scheme not in ("redis", "rediss", "unix", "embedded", "fake") or "://" not in url:
        raise ConfigurationError(f"the URL's scheme {parts.scheme[:20]!r} is unknown: use one of {SCHEMES}")
    if parts.scheme == "embedded" and parts.netloc:
        raise ConfigurationError("write embedded:///absolute/path with three slashes, or embedded:// for no path")
    return parts.scheme, host


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
