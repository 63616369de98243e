"""What a failed attempt means, and whether to make another.

The driver's own retry re-sends blindly: after a lost reply it stores a turn twice. Every call of this package goes
out without it. `persist` repeats an attempt instead; it is safe because a write carries an operation id that the
server recognises (lua/once.lua).
"""

from __future__ import annotations

import asyncio
import random
import re
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from redis import exceptions as driver

from symfonic_redis import telemetry
from symfonic_redis.errors import (
    AccessDenied,
    ConfigurationError,
    KeyConflict,
    MemoryUnavailable,
    OutOfMemory,
    PersistenceFailed,
    ServerRefused,
    SymfonicRedisError,
)

FIRST_PAUSE = 0.01
"""Seconds; the upper bound of the first pause between attempts. It doubles each time."""

LONGEST_PAUSE = 1.0
"""Seconds; the upper bound of any pause."""

# Codes are searched for, not matched at the start: a server of version 6.2 wraps the error of a script's command
# into one of its own, and the driver strips the codes it has classes for.
_CODES = re.compile(
    r"\b(WRONGTYPE|OOM|MISCONF|NOPERM|READONLY|LOADING|CLUSTERDOWN|TRYAGAIN|MASTERDOWN|NOREPLICAS|BUSY|UNBLOCKED)\b"
)
_TRANSIENT = frozenset(
    {"READONLY", "LOADING", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN", "NOREPLICAS", "BUSY", "UNBLOCKED"}
)
_CLASSES: tuple[tuple[type[Exception], str], ...] = (
    (driver.AuthenticationError, "NOAUTH"),
    (driver.AuthenticationWrongNumberOfArgsError, "NOAUTH"),
    (driver.AuthorizationError, "NOPERM"),
    (driver.NoPermissionError, "NOPERM"),
    (driver.OutOfMemoryError, "OOM"),
    (driver.ReadOnlyError, "READONLY"),
    (driver.BusyLoadingError, "LOADING"),
    (driver.ClusterDownError, "CLUSTERDOWN"),
    (driver.TryAgainError, "TRYAGAIN"),
    (driver.MasterDownError, "MASTERDOWN"),
)
_PHRASES = (
    # Versions 6.2 and 7.x word a refusal inside a script without its code.
    ("can't run this command", "NOPERM"),
    ("can't access at least one of the keys", "NOPERM"),
    ("ACL failure in script", "NOPERM"),
    # A master that became a replica between a write and the WAIT behind it.
    ("WAIT cannot be used with replica instances", "READONLY"),
)


def code_of(error: Exception) -> str:
    """The server's code of an error, such as `OOM`; `CONNECTION` when no answer came; `""` for anything else."""
    for kind, code in _CLASSES:
        if isinstance(error, kind):
            return code
    if isinstance(error, driver.ResponseError):
        text = str(error)
        found = _CODES.search(text)
        if found:
            return found[1]
        return next((code for phrase, code in _PHRASES if phrase in text), "")
    return "CONNECTION" if isinstance(error, driver.ConnectionError | driver.TimeoutError | OSError) else ""


def translate(error: Exception, operation: str, endpoint: str) -> SymfonicRedisError:  # noqa: PLR0911 - one for each code
    """The error of ours for an error of the driver's that no retry helps."""
    if _untrusted(error):
        return ConfigurationError(
            f"{operation} was not sent: the certificate of {endpoint} is not trusted; name its authority in the URL, "
            "as ?ssl_ca_certs=/path/ca.pem"
        )
    if "unknown command" in str(error).lower() and "hello" in str(error).lower():
        return ConfigurationError(f"the server at {endpoint} is older than 6.2: upgrade the server")
    if isinstance(error, driver.MovedError):
        return ConfigurationError(f"{endpoint} is a node of a cluster: connect with redis+cluster://")
    if "cluster support disabled" in str(error):
        return ConfigurationError(f"{endpoint} is no cluster: connect with redis://")
    code = code_of(error)
    if code == "OOM":
        return OutOfMemory(
            f"{operation} was refused: {endpoint} is out of memory (maxmemory); nothing was written; "
            "raise maxmemory, set a ttl, or lower the retention"
        )
    if code == "MISCONF":
        return PersistenceFailed(
            f"{operation} was refused: {endpoint} cannot persist and takes no writes; check its disk and its log"
        )
    if code == "NOPERM":
        return AccessDenied(
            f"{operation} was refused: the user on {endpoint} may not run a command or touch a key it needs; "
            "extend its ACL rules"
        )
    if code == "NOAUTH":
        return AccessDenied(f"{operation} was refused: {endpoint} does not accept the user or password; check the URL")
    if code == "WRONGTYPE":
        return KeyConflict(
            f"{operation} was refused: a key of ours on {endpoint} holds another type, so something else writes "
            "under our prefix; move it, or connect with another prefix"
        )
    return ServerRefused(f"{operation} was refused by {endpoint}: {type(error).__name__}; see the server's log")


def is_transient(error: Exception) -> bool:
    """Whether another attempt may succeed: the server was not reached, or says that it is busy changing state."""
    code = code_of(error)
    return code in _TRANSIENT or (code == "CONNECTION" and not _untrusted(error))


def _untrusted(error: BaseException | None) -> bool:
    """Whether the server's certificate is behind it: another attempt would find the same one."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return True
        error = error.__cause__ or error.__context__
    return False


_T = TypeVar("_T")


async def persist(
    attempt: Callable[[float], Awaitable[_T]],
    *,
    operation: str,
    endpoint: str,
    deadline: float,
    attempt_timeout: float,
    attributes: Mapping[str, str | int],
) -> _T:
    """Await `attempt(until)` until it succeeds, fails for good, or the deadline passes.

    Args:
        attempt: makes one attempt, and gives it up with `TimeoutError` at a time of the loop; called again for each.
        operation: its name, for errors and metrics.
        endpoint: where it goes, without credentials.
        deadline: seconds for all attempts and the pauses between them.
        attempt_timeout: seconds for one attempt.
        attributes: of the retry counter.

    Raises:
        MemoryUnavailable: no attempt succeeded before the deadline.
        ServerRefused, KeyConflict: the server's answer will not change.
    """
    loop = asyncio.get_running_loop()
    ends = loop.time() + deadline
    pause = FIRST_PAUSE
    while True:
        try:
            return await attempt(min(ends, loop.time() + attempt_timeout))
        except (driver.RedisError, OSError) as error:  # a TimeoutError is an OSError
            if not is_transient(error):
                raise translate(error, operation, endpoint) from error
            failure = error
        wait = random.uniform(0, pause)  # noqa: S311 - spreads retries, guards nothing
        if loop.time() + wait >= ends:
            reason = code_of(failure) if isinstance(failure, driver.ResponseError) else type(failure).__name__
            raise MemoryUnavailable(
                f"{operation} did not succeed within {deadline:g} s: {endpoint} is unavailable ({reason}); "
                "check that the server runs and can be reached"
            ) from failure
        telemetry.retries.add(1, {**attributes, "db.operation.name": operation})
        await asyncio.sleep(wait)
        pause = min(2 * pause, LONGEST_PAUSE)
