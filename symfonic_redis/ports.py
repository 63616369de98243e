"""What the stages need of a capability, checked before any turn, and what it answers, checked when it does."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from symfonic_redis.errors import ConfigurationError, InvalidInput
from symfonic_redis.guard import is_async

_MISSING = object()


def require_port(  # noqa: PLR0917 - the parts of one sentence
    capability: Any, handler: str, attribute: str, method: str, argument: str, example: str
) -> None:
    """Refuse a capability whose `attribute` has no async `method`.

    Raises:
        ConfigurationError: it says what to pass.
    """
    collaborator = getattr(capability, attribute, None)
    if is_async(getattr(collaborator, method, None)) and not isinstance(collaborator, type):
        return
    raise ConfigurationError(
        f"{handler} needs a capability whose {attribute} has an async {method}({argument}): pass {example}"
    )


def require_records_from(capability: Any) -> None:
    """Refuse a capability without a plain `records_from`.

    Raises:
        ConfigurationError: it says what to pass.
    """
    found = getattr(capability, "records_from", None)
    if not callable(found) or is_async(found) or inspect.isasyncgenfunction(found):
        raise ConfigurationError(
            "write_handler needs a capability whose records_from(context) returns the turn's records: pass a plain "
            "function that makes MemoryRecords"
        )


def key_of(request: Any) -> str:
    """The name of the turn under which its writes happen once; empty for none.

    Raises:
        InvalidInput: it is no text.
    """
    key = getattr(request, "idempotency_key", None)
    if key is not None and not isinstance(key, str):
        raise InvalidInput("a request's idempotency_key must be a text: name the job, or leave it away")
    return key or ""


def records_of(capability: Any, context: Any) -> tuple[Any, ...]:
    """What `records_from` makes of the turn.

    Raises:
        InvalidInput: that is no collection.
        BaseException: whatever it raised.
    """
    return collection(capability.records_from(context), "records_from")


def collection(made: Any, maker: str) -> tuple[Any, ...]:
    """The records that somebody made; none for None.

    Raises:
        InvalidInput: that is no collection.
    """
    if made is None:
        return ()
    if not isinstance(made, str | bytes | Mapping) and isinstance(made, Iterable):
        return tuple(made)
    if inspect.iscoroutine(made):
        made.close()
    raise InvalidInput(f"{maker} returned a {type(made).__name__}: return a list of MemoryRecords, or None")


def ids_of(receipt: Any, attribute: str) -> tuple[Any, ...]:
    """The ids that a receipt names.

    Raises:
        ConfigurationError: it is no receipt.
    """
    ids = getattr(receipt, attribute, _MISSING)
    if ids is None:
        return ()
    if isinstance(ids, Iterable) and not isinstance(ids, str | bytes | Mapping):
        return tuple(ids)
    raise ConfigurationError(
        f"a {type(receipt).__name__} is no receipt: its {attribute} must be a tuple of ids, as of a WriteReceipt or "
        "FlushReceipt; correct the collaborator"
    )
