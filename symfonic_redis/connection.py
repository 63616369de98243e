"""What a caller connects with: a URL, or a client that there is already."""

from __future__ import annotations

from typing import Unpack
from weakref import WeakValueDictionary

from redis import asyncio as redis

from symfonic_redis.deployment import Deployment
from symfonic_redis.options import Options
from symfonic_redis.topologies import Target, refused


def connect(target: Target, **options: Unpack[Options]) -> Deployment:
    """Return the deployment behind a URL or a `redis.asyncio` client. Use it with `async with`.

    Args:
        target: `redis://` or `rediss://` with `user:password@host:port/db`, `unix:///path.sock`;
            `redis+cluster://user:password@host:port,host:port`, `redis+sentinel://.../name/db`, or `rediss+...` (see
            docs/topologies.md); `embedded://` for a real server in a child process, gone when closed;
            `embedded:///path` for one that keeps its data there and is shared by the processes that open it; `fake://`
            or `fake://name` for fakeredis, in this process. Or a client, also of a cluster: our calls go out without
            its retry, and it is never closed by us.
        options: see `Options`.

    Raises:
        ConfigurationError: an unknown scheme, or an option out of range. The server is not contacted yet.
    """
    return Deployment(target, **options)


# By the client's identity, and only while a layer or a store holds the deployment, which holds the client.
_deployments: WeakValueDictionary[int, Deployment] = WeakValueDictionary()


def deployment_of(target: Deployment | redis.Redis) -> Deployment:
    """Return `target` itself, or the one deployment of a client that was passed as it is.

    Raises:
        ConfigurationError: it is neither.
    """
    if isinstance(target, Deployment):
        return target
    found = _deployments.get(id(target))
    if found is None:
        if not isinstance(target, redis.Redis):
            # A URL and a cluster's client too: who opens connections closes them.
            raise refused(target)
        found = _deployments[id(target)] = Deployment(target)
    return found
