"""Ids, scopes and pairs of scopes that a key, a pattern or a reader could take for one another."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import quote

from hypothesis import strategies as st

from symfonic_redis import InvalidInput, ScopeLike, TenantScope
from symfonic_redis.scope import ScopeLevel, check_id, scope_address

Path = tuple[tuple[str, str], ...]


class Duck(NamedTuple):
    """Another package's scope: its tenant need not stand in its path."""

    tenant_id: str
    scope_path: str


def allowed(name: str) -> bool:
    try:
        return bool(check_id(name))
    except InvalidInput:
        return False


_SPECIAL = st.text(
    st.sampled_from(":{}*?[]\\/%@ \x00\n\r\t.~-_()'\"aAbé0\ud800\udfff\u0301\u200b\u200f\u202e\ufeff😀İß"),
    min_size=1,
    max_size=6,
)
_WHOLE = st.sampled_from(
    [
        *("turns", "ops", "old", "ops:old", "scopes", "closed", "tenants", "feed", "seq", "relays", "import", "config"),
        *(
            "graph:working",
            "{0042}",
            "lease@relay",
            "%2F",
            "a/b",
            "..",
            "*",
            "[a-z]*",
            "x" * 512,
            "é" * 256,
            "\x00" * 9,
        ),
    ]
)
IDS = (_SPECIAL | _WHOLE | st.text(min_size=1, max_size=5)).filter(allowed)

_TWINS: tuple[Callable[[str], str], ...] = (
    *(
        lambda name, mark=mark: name + mark
        for mark in (":", "/", "*", "?", "}", "\x00", " ", "%", "\u200f", ":turns", "a")
    ),
    lambda name: name[:-1],
    lambda name: name[1:],
    lambda name: "\u202e" + name,
    str.swapcase,
    str.casefold,
    lambda name: unicodedata.normalize("NFC", name),
    lambda name: unicodedata.normalize("NFD", name),
    lambda name: unicodedata.normalize("NFKC", name),
    lambda name: quote(name, safe="", errors="surrogatepass"),
    lambda name: name.encode("utf-8", "surrogatepass")[:512].decode("utf-8", "ignore"),
)


def scope_of(path: Path) -> TenantScope:
    return TenantScope.from_path([ScopeLevel(kind=kind, id=id_) for kind, id_ in path])


PATHS = st.lists(st.tuples(IDS, IDS), min_size=1, max_size=3, unique_by=lambda level: level[0]).map(tuple)


@st.composite
def _twin_paths(draw, path: Path) -> Path:
    """A path that differs from `path` in one name, and that looks like it."""
    number, place = draw(st.integers(0, len(path) - 1)), draw(st.integers(0, 1))
    level = list(path[number])
    level[place] = draw(st.sampled_from(_TWINS))(level[place])
    return (*path[:number], (level[0], level[1]), *path[number + 1 :])


@st.composite
def pairs(draw) -> tuple[ScopeLike, ScopeLike]:
    """Two different scopes: unrelated, one below the other, look-alikes, or one path of two tenants."""
    path = draw(PATHS)
    how = draw(st.sampled_from(["twin"] * 4 + ["other", "below", "above", "joined", "tenants"]))
    if how == "tenants":
        tenants = draw(st.lists(IDS, min_size=2, max_size=2, unique=True))
        shared = scope_of(path).scope_path
        return Duck(tenants[0], shared), Duck(tenants[1], shared)
    other = path
    if how == "twin":
        other = draw(_twin_paths(path))
    elif how == "other":
        other = draw(PATHS)
    elif how == "joined":
        separator = draw(st.sampled_from("/:%"))
        other = ((path[0][0], separator.join(part for level in path for part in level)),)
    elif how in ("below", "above"):
        other = (*path, ("below", draw(IDS)))
    if how == "above":
        path, other = other, path
    try:
        one, two = scope_of(path), scope_of(other)
    except ValueError:  # the twin is no scope
        one = two = scope_of((("org", "a"),))
    if scope_address(one) == scope_address(two):
        two = scope_of((*path, ("part", "x"))) if how != "above" else scope_of((("org", "elsewhere"),))
    return one, two
