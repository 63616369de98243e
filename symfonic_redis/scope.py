"""Whose memory: a tenant, and below it as many levels as the deployment needs.

A scope is a root-first path of levels, each a kind and an id: `org acme > brand widgets > conversation c-123`.
Memory belongs to exactly one scope. No call of this package merges a parent's or a child's.

Any object with `tenant_id` and `scope_path` serves as a scope (the reference system's own class does), which is
what `scope_address` reads.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Protocol, Self, TypeVar
from urllib.parse import quote, unquote

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from symfonic_redis.errors import InvalidInput

SCOPE_PATH_DELIMITER = "\x1f"
"""Separates kinds and ids in a scope path. No kind or id may hold it: it would forge a level."""

MAX_ID_BYTES = 512
"""The longest kind or id, in UTF-8 bytes. Ids become key names, which Redis keeps and sends whole."""

MAX_LEVELS = 16
"""The deepest path. It bounds the length of a key."""

_TENANT_KIND = "tenant"
_SUB_TENANT_KIND = "sub_tenant"
_MAX_INHERITANCE = 8


class ScopeLike(Protocol):
    """What this package needs of a scope, its own or another package's."""

    @property
    def tenant_id(self) -> str:
        """The tenant the scope belongs to."""
        ...

    @property
    def scope_path(self) -> str:
        """Kinds and ids, root first, joined by `SCOPE_PATH_DELIMITER`."""
        ...


def check_id(value: str) -> str:
    """Return `value` if it can name a level; raise `InvalidInput` (a `ValueError`) otherwise."""
    if not value.strip():
        raise InvalidInput("a scope's kind or id is empty: give each level a name")
    if SCOPE_PATH_DELIMITER in value:
        raise InvalidInput("a scope's kind or id holds the path delimiter \\x1f, which would forge a level: remove it")
    size = len(value.encode("utf-8", "surrogatepass"))
    if size > MAX_ID_BYTES:
        raise InvalidInput(f"a scope's kind or id has {size} bytes; at most {MAX_ID_BYTES} are allowed: use a digest")
    return value


def scope_address(scope: ScopeLike) -> tuple[str, str]:
    """Return `(tenant_id, scope_path)` of any scope-like object, checked.

    A flat scope with an empty sub-tenant is the tenant alone. The reference package's scope of that form raises
    when it is asked for its path, so it is answered here before it is asked.

    Raises:
        InvalidInput: the object is no scope, or an id in it is empty, too long, or the path too deep.
    """
    try:
        # Another package's object: its attributes may be anything.
        tenant: object = scope.tenant_id
        path: object
        if getattr(scope, "sub_tenant_id", None) == "" and getattr(scope, "path_override", None) is None:
            path = f"{_TENANT_KIND}{SCOPE_PATH_DELIMITER}{tenant}"
        else:
            path = scope.scope_path
    except AttributeError as error:
        raise InvalidInput("a scope needs the attributes tenant_id and scope_path: pass a TenantScope") from error
    except ValueError:
        # Not chained: another package's message may quote the id.
        raise InvalidInput("a scope's path cannot be told: one of its ids is blank or holds a delimiter") from None
    if not isinstance(tenant, str) or not isinstance(path, str):
        raise InvalidInput("a scope's tenant_id and scope_path must be strings: pass a TenantScope")
    return _checked(tenant, path)


@lru_cache(maxsize=4_096)
def _checked(tenant: str, path: str) -> tuple[str, str]:
    check_id(tenant)
    parts = path.split(SCOPE_PATH_DELIMITER)
    if len(parts) > 2 * MAX_LEVELS:
        raise InvalidInput(f"a scope has more than {MAX_LEVELS} levels: use fewer")
    for part in parts:
        check_id(part)
    return tenant, path


class ScopeLevel(BaseModel):
    """One level of a path, such as `conversation` `c-123`.

    `kind` is the deployment's own word, `id` the identifier at this level. Both are 1 to 512 UTF-8 bytes, not blank.
    """

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    kind: str = Field(description="The level's name in the deployment's own words.")
    id: str = Field(description="The identifier at this level.")

    @field_validator("kind", "id")
    @classmethod
    def _names_a_level(cls, value: str) -> str:
        return check_id(value)


class TenantScope(BaseModel):
    """The address of one memory: a tenant and the levels below it. Immutable and hashable.

    Build it with `root` and `child`, with `from_path`, or flat: `TenantScope(tenant_id="acme", sub_tenant_id="b")`
    is the two-level path `tenant acme > sub_tenant b`. An empty `sub_tenant_id` is none.

    `namespace` and `inherits_from` are carried for the reference system's sake. They do not change the address.
    """

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    tenant_id: str = Field(description="The id of the path's root.")
    sub_tenant_id: str | None = Field(default=None, description="The id of the path's second level, if any.")
    namespace: str | None = Field(default=None, description="A label beside the path; no part of the address.")
    inherits_from: tuple[TenantScope, ...] = Field(default=(), description="Ancestor scopes that other layers merge.")
    path_override: tuple[ScopeLevel, ...] | None = Field(default=None, description="The path, when it is not flat.")

    @field_validator("tenant_id")
    @classmethod
    def _names_a_tenant(cls, value: str) -> str:
        return check_id(value)

    @field_validator("sub_tenant_id")
    @classmethod
    def _empty_is_none(cls, value: str | None) -> str | None:
        return check_id(value) if value else None

    @model_validator(mode="after")
    def _path_agrees(self) -> Self:
        path = self.path_override
        if path is None:
            return self
        if not path:
            raise InvalidInput("a scope's path is empty: give at least one level")
        if len(path) > MAX_LEVELS:
            raise InvalidInput(f"a scope has {len(path)} levels; at most {MAX_LEVELS} are allowed: use fewer")
        if len({level.kind for level in path}) != len(path):
            raise InvalidInput("two levels of a scope are of the same kind: name each kind once")
        if path[0].id != self.tenant_id:
            raise InvalidInput("a scope's tenant_id is not the id of its path's root: make them equal")
        if self.sub_tenant_id not in (None, *(level.id for level in path[1:2])):
            raise InvalidInput("a scope's sub_tenant_id is not the id of its path's second level: make them equal")
        return self

    @model_validator(mode="after")
    def _inheritance_ends(self) -> Self:
        def walk(scope: TenantScope, above: tuple[tuple[str, str | None], ...]) -> None:
            key = (scope.scope_path, scope.namespace)
            if key in above:
                raise InvalidInput("a scope inherits from itself: break the circle in inherits_from")
            if len(above) > _MAX_INHERITANCE:
                raise InvalidInput(f"inherits_from is more than {_MAX_INHERITANCE} scopes deep: flatten it")
            for ancestor in scope.inherits_from:
                walk(ancestor, (*above, key))

        walk(self, ())
        return self

    @classmethod
    def root(cls, kind: str, id: str, *, namespace: str | None = None) -> Self:  # noqa: A002 - the reference's name
        """Return the one-level scope `kind id`, the tenant itself."""
        return cls.from_path([_made(ScopeLevel, kind=kind, id=id)], namespace=namespace)

    @classmethod
    def from_path(cls, path: list[ScopeLevel] | tuple[ScopeLevel, ...], *, namespace: str | None = None) -> Self:
        """Return the scope of `path`, root first, of 1 to 16 levels of different kinds."""
        levels = tuple(path)
        if not levels:
            raise InvalidInput("a scope's path is empty: give at least one level")
        return _made(
            cls,
            tenant_id=levels[0].id,
            sub_tenant_id=levels[1].id if len(levels) > 1 else None,
            namespace=namespace,
            path_override=levels,
        )

    def child(self, kind: str, id: str) -> Self:  # noqa: A002 - the reference's name
        """Return the scope one level below this one; namespace and inheritance are kept."""
        path = (*self.path, _made(ScopeLevel, kind=kind, id=id))
        return _made(
            type(self),
            tenant_id=path[0].id,
            sub_tenant_id=path[1].id,
            namespace=self.namespace,
            inherits_from=self.inherits_from,
            path_override=path,
        )

    @property
    def path(self) -> tuple[ScopeLevel, ...]:
        """The levels, root first."""
        if self.path_override is not None:
            return self.path_override
        tenant = ScopeLevel(kind=_TENANT_KIND, id=self.tenant_id)
        if self.sub_tenant_id is None:
            return (tenant,)
        return tenant, ScopeLevel(kind=_SUB_TENANT_KIND, id=self.sub_tenant_id)

    @property
    def scope_path(self) -> str:
        """The levels as one string: kind, id, kind, id, joined by `SCOPE_PATH_DELIMITER`."""
        return _joined(self.path)

    @property
    def scope_depth(self) -> int:
        """How many levels the path has; a tenant alone has one."""
        return len(self.path)

    def ancestor_prefix_paths(self) -> list[str]:
        """The scope paths of every prefix of this path, root first, this one last."""
        path = self.path
        return [_joined(path[: depth + 1]) for depth in range(len(path))]


_Made = TypeVar("_Made", bound=BaseModel)


def _made(model: type[_Made], **values: Any) -> _Made:
    """Build a model; what it refuses is our own error, one sentence without the value."""
    try:
        return model(**values)
    except ValidationError as error:
        raise InvalidInput(error.errors()[0]["msg"].removeprefix("Value error, ")) from None


def _joined(path: tuple[ScopeLevel, ...]) -> str:
    return SCOPE_PATH_DELIMITER.join([part for level in path for part in (level.kind, level.id)])


def parse_scope(text: str) -> TenantScope:
    """Read a scope as the command line writes it: `org=acme/conversation=c-123`.

    A kind or an id that holds `/`, `=` or `%` writes it percent-encoded (`%2F`, `%3D`, `%25`).

    Raises:
        InvalidInput: the text is not of that form.
    """
    levels = []
    for part in text.split("/"):
        kind, equals, id_ = part.partition("=")
        if not equals:
            raise InvalidInput("a scope is written as kind=id/kind=id, for example org=acme/conversation=c-123")
        levels.append((_unquoted(kind), _unquoted(id_)))
    first, *rest = levels
    scope = TenantScope.root(*first)
    for kind, id_ in rest:
        scope = scope.child(kind, id_)
    return scope


def format_scope(scope: TenantScope) -> str:
    """Write a scope as the command line reads it; the inverse of `parse_scope`."""
    return "/".join(f"{_quoted(level.kind)}={_quoted(level.id)}" for level in scope.path)


def _unquoted(text: str) -> str:
    try:
        return unquote(text, errors="surrogatepass")
    except UnicodeDecodeError:
        raise InvalidInput("a scope's percent-encoding is no UTF-8: correct it") from None


def _quoted(value: str) -> str:
    return quote(value, safe=" !'()*+,-.:;@_~", errors="surrogatepass")
