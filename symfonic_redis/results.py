"""What came of a stage: what it did, or why it changed nothing, with its counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

_T_co = TypeVar("_T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class ResolvedInput(Generic[_T_co]):
    """What a stage did: the ids it wrote or published, and the path of the scope that they belong to.

    They are all that it wrote or published, which may be more than the window shows afterwards.
    """

    capability: str
    value: _T_co
    provenance: object


@dataclass(frozen=True, slots=True)
class StageResult(Generic[_T_co]):
    """What came of a stage.

    Attributes:
        resolved: what it did; None when it changed nothing.
        reason: why it changed nothing; empty when it did. Never content.
        counts: how many of what this call did, by name; not how many there are afterwards.
    """

    resolved: ResolvedInput[_T_co] | None = None
    reason: str = ""
    counts: Mapping[str, int] = field(default_factory=dict, hash=False)

    @property
    def changed(self) -> bool:
        """Whether the stage did anything."""
        return self.resolved is not None


def applied(resolved: ResolvedInput[_T_co], *, counts: Mapping[str, int] | None = None) -> StageResult[_T_co]:
    """The result of a stage that did something."""
    return StageResult(resolved, counts=dict(counts or {}))


def no_change(reason: str, *, counts: Mapping[str, int] | None = None) -> StageResult[Any]:
    """The result of a stage that changed nothing, and why."""
    return StageResult(reason=reason, counts=dict(counts or {}))
