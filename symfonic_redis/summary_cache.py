"""One summary for the whole fleet: whoever asks first has it written, the others do not wait and do not ask again."""

from __future__ import annotations

import os
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

from redis import asyncio as redis

from symfonic_redis.codec import decode, encode
from symfonic_redis.connection import deployment_of
from symfonic_redis.deployment import Deployment
from symfonic_redis.errors import CodecError, ConfigurationError
from symfonic_redis.keys import ScopeKeys, scope_keys
from symfonic_redis.models import check_ttl
from symfonic_redis.scope import ScopeLike
from symfonic_redis.store import Store

TTL = 86_400.0
"""Seconds for which a summary is kept after it was written or found: a day."""

LEASE = 30.0
"""Seconds in which whoever writes a summary must be done; after that another may."""

# What summary_claim.lua answers; `taken` is the rest.
_THERE, _GRANTED, _GONE = b"there", b"granted", b"gone"


_KIND = "summary"


class Claim(NamedTuple):
    """What asking for a summary came to.

    Attributes:
        text: the summary of this revision; None when there is none yet.
        token: given to the one caller who is to write it; None to all others.
        previous: the summary before, when the turns that it covers lead up to these; else None.
        gone: the scope has no turns in this deployment: nothing is kept of it.
    """

    text: str | None = None
    token: bytes | None = None
    previous: str | None = None
    gone: bool = False


class SharedSummaryCache:
    """Keeps a scope's last summary in Redis, and a short lease for the worker that writes the next.

    Give the same one to every worker's `WorkingMemorySummaryService`; it is used in mode `llm`. A revision costs one
    model call for all of them. A holder that crashed, was cancelled, or whose model failed keeps the lease until it
    expires, so a failing model is asked once in that time. What is kept goes with a `clear` or a purge of its scope,
    and with its turns when they expire. One that this version cannot read is written anew.

    Args:
        redis: what `connect` returns, or a `redis.asyncio` client; of the layer whose turns are summarized.
        ttl: seconds for which a summary is kept after it was written or found, and never longer than the scope's turns.
        lease: seconds for which one worker has the right to write; longer than its model may take.
        name: tells apart summaries of the same turns that differ, as by another model.

    Raises:
        ConfigurationError: a time is not a positive number of seconds, or the name is no text.
    """

    def __init__(
        self, redis: Deployment | redis.Redis, *, ttl: float = TTL, lease: float = LEASE, name: str = ""
    ) -> None:
        self._ttl = _milliseconds(ttl, "ttl")
        self._lease = _milliseconds(lease, "lease")
        self.lease = lease
        given: object = name  # an untyped caller may pass anything
        if not isinstance(given, str):
            raise ConfigurationError(f"a cache's name must be a text, not a {type(given).__name__}: correct it")
        self._name = name
        self._store = _Summaries(deployment_of(redis))

    async def claim(self, scope: ScopeLike, revision: str, covered: Sequence[str], *, max_chars: int) -> Claim:
        """The summary of a revision, or the right to write it, or neither, and then the summary before if it helps.

        Args:
            scope: whose.
            revision: of its evicted turns.
            covered: a mark of each of these turns; a summary before helps if it ends with one of them.
            max_chars: the longest text; summaries of another length are kept apart.

        Cost: one round trip; one more for a summary that cannot be read, which is counted and logged once.

        Raises:
            MemoryUnavailable: the server was not reached within the deadline.
            ServerRefused, KeyConflict, ScopeClosed: the server, or the scope's purge, refuses it.
        """
        keys, token = scope_keys(self._store.deployment.prefix, scope), os.urandom(16)
        variant, mark = self._variant(max_chars), self._store.seal(keys).token(revision, _KIND)
        state, row = await self._store.claim(keys, variant, mark, token, lease=self._lease, ttl=self._ttl)
        found = self._read(keys, variant, row)
        if state == _THERE and found is None:
            # Damaged, or of a newer version. Asked for again as if that row were not there: if another worker has
            # written a better one meanwhile, that is what comes back, and the right is still given to one alone.
            state, row = await self._store.claim(
                keys, variant, mark, token, lease=self._lease, ttl=self._ttl, unreadable=row
            )
            found = self._read(keys, variant, row) if state == _THERE else None
        if state == _THERE and found is not None:
            return Claim(text=found[0])
        return Claim(
            token=token if state == _GRANTED else None,
            previous=found[0] if found is not None and found[1] in covered else None,
            gone=state == _GONE,
        )

    async def keep(
        self, scope: ScopeLike, revision: str, covered: Sequence[str], text: str, *, token: bytes, max_chars: int
    ) -> bool:
        """Keep the summary that a claim gave the right to write; return whether it still had it.

        The right is lost when the lease expired and another took it, and when the scope was cleared meanwhile or its
        turns expired: a text about erased turns is not brought back. Cost: one round trip. Errors as `claim`.
        """
        keys = scope_keys(self._store.deployment.prefix, scope)
        seal, variant = self._store.seal(keys), self._variant(max_chars)
        row = seal.seal(encode([text, covered[-1] if covered else ""]), _KIND, variant)
        mark = seal.token(revision, _KIND)
        return await self._store.keep(keys, variant, mark, token, row=row, ttl=self._ttl)

    def _read(self, keys: ScopeKeys, variant: str, row: bytes) -> tuple[str, str] | None:
        """A stored summary and the mark of the last turn that it covers; None when there is none to be read."""
        if not row:
            return None
        try:
            found = decode(self._store.seal(keys).unseal(row, _KIND, variant))
        except CodecError as error:
            failure = error
        else:
            match found:
                case [str() as text, str() as last]:
                    return text, last
            failure = CodecError("it holds no summary")
        self._store.damaged(keys.summary, "of the summary", failure)
        return None

    def _variant(self, max_chars: int) -> str:
        name = f"{max_chars} {self._name}".encode("utf-8", "surrogatepass")
        return blake2b(name, digest_size=8).hexdigest()


class _Summaries(Store):
    """The calls on a scope's shared summary."""

    async def claim(
        self,
        keys: ScopeKeys,
        variant: str,
        revision: str,
        token: bytes,
        *,
        lease: int,
        ttl: int,
        unreadable: bytes = b"",
    ) -> tuple[bytes, bytes]:
        """What came of asking and the row that is kept. See lua/summary_claim.lua."""
        args: list[str | bytes | int] = [variant, revision, token, lease, ttl, unreadable]
        _, state, *rest = await self._write("summary_claim", keys, (keys.turns, keys.summary), args)
        # An attempt that is told of its own success by the receipt alone learns of no row.
        return state, rest[0] if rest else b""

    async def keep(self, keys: ScopeKeys, variant: str, revision: str, token: bytes, *, row: bytes, ttl: int) -> bool:
        """Whether the row was kept. See lua/summary_keep.lua."""
        args: list[str | bytes | int] = [variant, revision, token, row, ttl]
        _, receipt = await self._write("summary_keep", keys, (keys.turns, keys.summary), args)
        return bool(receipt == b"kept")


def _milliseconds(seconds: float, name: str) -> int:
    try:
        milliseconds = check_ttl(seconds)
    except ConfigurationError:
        milliseconds = None
    if milliseconds is None:
        raise ConfigurationError(f"{name} must be a positive number of seconds, at most 100 years: correct it")
    return milliseconds
