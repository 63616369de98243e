"""What a deployment agrees on: `<prefix>:config`, written once, compared by every worker that connects.

Two versions that place or encode rows differently must not share a prefix. The key is read with a plain GET, which
any ACL user of the prefix may run. Where a worker may not write it, `symfonic-redis init` does, under a user who may.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

from symfonic_redis.errors import AccessDenied, ConfigurationError, ServerRefused
from symfonic_redis.keys import PARTITIONS, config_key

SCHEMA = 1
"""The version of keys and row layout together. A change of either raises it."""

OLDEST = (6, 2)
"""The oldest Redis that has every command the scripts use."""

Call = Callable[..., Awaitable[Any]]
"""`await call(operation, *command)`: one command with retries, as `Deployment.call` makes it."""

_EXPECTED = {"schema": SCHEMA, "partitions": PARTITIONS}
_VERSION = re.compile(r"(?:valkey|redis)_version:(\d+)\.(\d+)(\S*)")


async def verify(call: Call, prefix: str, endpoint: str) -> None:
    """Compare the deployment's configuration with this version's; write it when there is none yet.

    Cost: one GET; one SET and one GET more the first time.

    Raises:
        ConfigurationError: it differs, or there is none and this user may not write it.
        MemoryUnavailable: the server is not reached.
    """
    key = config_key(prefix)
    stored = await call("connect", "GET", key)
    if stored is None:
        try:
            await call("connect", "SET", key, json.dumps(_EXPECTED), "NX")
        except AccessDenied as error:
            raise ConfigurationError(
                f"the prefix {prefix!r} on {endpoint} has no configuration yet and this user may not write it: "
                f"run `symfonic-redis init --prefix {prefix}` once as a user who may"
            ) from error
        stored = await call("connect", "GET", key)
    try:
        found = json.loads(stored)
    except (TypeError, ValueError):
        found = None
    if found != _EXPECTED:
        raise ConfigurationError(
            f"the prefix {prefix!r} on {endpoint} is configured as {_described(found)}, and this version needs "
            f"{_described(_EXPECTED)}: use the version that wrote it, or another prefix"
        )


async def verify_version(call: Call, endpoint: str) -> None:
    """Refuse a server that is older than `OLDEST`, by name. A user who may not ask is not stopped by that.

    Cost: one INFO.

    Raises:
        ConfigurationError: the server is too old.
    """
    try:
        info = await call("connect", "INFO", "server")
    except ServerRefused:
        return
    text = info.decode("utf-8", "replace") if isinstance(info, bytes) else str(info)
    if "valkey_version:" in text:
        return
    found = _VERSION.search(text)
    if found and (int(found[1]), int(found[2])) < OLDEST:
        raise ConfigurationError(
            f"Redis {found[1]}.{found[2]}{found[3]} at {endpoint} is older than {OLDEST[0]}.{OLDEST[1]}: "
            "upgrade the server"
        )


def _described(config: object) -> str:
    if not isinstance(config, dict):
        return "something else"
    return ", ".join(f"{name} {config[name]}" for name in sorted(config) if isinstance(config[name], int))
