"""Scopes: what addresses a memory, what is refused, and that the reference package's scopes are the same."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from symfonic_redis import InvalidInput, ScopeLevel, TenantScope, parse_scope
from symfonic_redis.scope import MAX_ID_BYTES, MAX_LEVELS, SCOPE_PATH_DELIMITER, scope_address

NAMES = st.text(st.characters(exclude_characters=SCOPE_PATH_DELIMITER), min_size=1, max_size=20).filter(str.strip)
PATHS = st.lists(st.tuples(NAMES, NAMES), min_size=1, max_size=6, unique_by=lambda level: level[0])

# The reference package takes no lone surrogates.
TEXT = st.text(st.characters(codec="utf-8", exclude_characters=SCOPE_PATH_DELIMITER), min_size=1).filter(str.strip)
PATHS_OF_TEXT = st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=6, unique_by=lambda level: level[0])

BAD_NAMES = {
    "empty": "",
    "blank": " \t\n",
    "too long": "x" * (MAX_ID_BYTES + 1),
    "too long in bytes only": "ü" * (MAX_ID_BYTES // 2 + 1),
    "forging": f"a{SCOPE_PATH_DELIMITER}b",
}
bad_names = pytest.mark.parametrize("bad", BAD_NAMES.values(), ids=BAD_NAMES)


def scope_of(path: list[tuple[str, str]]) -> TenantScope:
    return TenantScope.from_path([ScopeLevel(kind=kind, id=id_) for kind, id_ in path])


@given(PATHS)
def test_a_path_of_any_depth_is_addressed_by_its_kinds_and_ids(path):
    scope = scope_of(path)
    assert scope.scope_path == SCOPE_PATH_DELIMITER.join(part for level in path for part in level)
    assert scope.scope_depth == len(path)
    assert scope.tenant_id == path[0][1]
    assert scope.sub_tenant_id == (path[1][1] if len(path) > 1 else None)
    assert [(level.kind, level.id) for level in scope.path] == path
    assert scope_address(scope) == (scope.tenant_id, scope.scope_path)


@given(PATHS)
def test_children_of_a_root_are_the_same_scope_as_the_path(path):
    (kind, id_), *below = path
    scope = TenantScope.root(kind, id_)
    for kind, id_ in below:
        scope = scope.child(kind, id_)
    assert scope == scope_of(path)
    assert hash(scope) == hash(scope_of(path))


@given(PATHS)
def test_ancestors_are_every_prefix_from_the_root_to_itself(path):
    scope = scope_of(path)
    assert scope.ancestor_prefix_paths() == [scope_of(path[:depth]).scope_path for depth in range(1, len(path) + 1)]
    assert scope.ancestor_prefix_paths()[-1] == scope.scope_path


def test_a_path_may_be_given_as_any_sequence():
    levels = [ScopeLevel(kind="org", id="acme"), ScopeLevel(kind="team", id="a")]
    assert TenantScope.from_path(levels) == TenantScope.from_path(tuple(levels))


def test_a_flat_scope_is_a_path_of_tenant_and_sub_tenant():
    assert TenantScope(tenant_id="acme").scope_path == "tenant\x1facme"
    both = TenantScope(tenant_id="acme", sub_tenant_id="b")
    assert both.scope_path == "tenant\x1facme\x1fsub_tenant\x1fb"
    assert both.scope_depth == 2
    assert both.ancestor_prefix_paths() == ["tenant\x1facme", both.scope_path]
    deeper = both.child("conversation", "c")
    assert deeper.scope_path == f"{both.scope_path}\x1fconversation\x1fc"
    assert (deeper.tenant_id, deeper.sub_tenant_id) == ("acme", "b")


def test_an_empty_sub_tenant_is_none():
    empty, none = TenantScope(tenant_id="acme", sub_tenant_id=""), TenantScope(tenant_id="acme")
    assert empty == none
    assert hash(empty) == hash(none)
    assert empty.sub_tenant_id is None
    assert scope_address(empty) == scope_address(none)


def test_a_namespace_is_kept_and_no_part_of_the_address():
    plain, named = TenantScope.root("org", "acme"), TenantScope.root("org", "acme", namespace="n")
    assert named.namespace == "n"
    assert named.child("team", "a").namespace == "n"
    assert TenantScope.from_path(named.path, namespace="m").namespace == "m"
    assert scope_address(named) == scope_address(plain)
    assert named != plain


def test_inheritance_is_kept_and_no_part_of_the_address():
    parent = TenantScope.root("org", "acme")
    heir = TenantScope(tenant_id="acme", sub_tenant_id="b", inherits_from=(parent,))
    assert heir.inherits_from == (parent,)
    assert heir.child("conversation", "c").inherits_from == (parent,)
    assert scope_address(heir) == scope_address(TenantScope(tenant_id="acme", sub_tenant_id="b"))


def test_a_circle_of_inheritance_is_refused():
    one = TenantScope(tenant_id="one")
    two = TenantScope(tenant_id="two", inherits_from=(one,))
    with pytest.raises(ValueError, match="inherits from itself"):
        TenantScope(tenant_id="one", inherits_from=(two,))
    with pytest.raises(ValueError, match="inherits from itself"):
        TenantScope(tenant_id="one", inherits_from=(one,))
    assert TenantScope(tenant_id="one", namespace="other", inherits_from=(one,))


def test_a_shared_ancestor_is_no_circle():
    top = TenantScope(tenant_id="top")
    left, right = (TenantScope(tenant_id=name, inherits_from=(top,)) for name in ("left", "right"))
    assert TenantScope(tenant_id="heir", inherits_from=(left, right)).inherits_from == (left, right)


def test_inheritance_ends_after_eight_scopes():
    scope = TenantScope(tenant_id="0")
    for number in range(1, 9):
        scope = TenantScope(tenant_id=str(number), inherits_from=(scope,))
    with pytest.raises(ValueError, match="8 scopes deep"):
        TenantScope(tenant_id="9", inherits_from=(scope,))


def test_a_scope_cannot_be_changed(scope):
    with pytest.raises(ValidationError):
        scope.tenant_id = "other"
    with pytest.raises(ValidationError):
        scope.path[0].id = "other"
    assert len({scope, TenantScope.root("org", "acme").child("conversation", "c-123")}) == 1


def test_a_scope_comes_back_from_its_own_dump(scope):
    heir = TenantScope(tenant_id="acme", namespace="n", inherits_from=(scope,))
    for one in (scope, heir, TenantScope(tenant_id="acme", sub_tenant_id="b")):
        assert TenantScope.model_validate(one.model_dump()) == one
        assert TenantScope.model_validate_json(one.model_dump_json()) == one


def test_a_subclass_stays_one():
    class Special(TenantScope):
        pass

    assert type(Special.root("org", "acme").child("team", "a")) is Special


@bad_names
def test_a_bad_kind_or_id_is_refused(bad):
    for build in (
        lambda: ScopeLevel(kind=bad, id="a"),
        lambda: ScopeLevel(kind="a", id=bad),
        lambda: TenantScope.root("org", bad),
        lambda: TenantScope.root(bad, "acme"),
        lambda: TenantScope.root("org", "acme").child("team", bad),
        lambda: TenantScope(tenant_id=bad),
    ):
        with pytest.raises(ValueError):
            build()
    if bad:
        with pytest.raises(ValueError):
            TenantScope(tenant_id="acme", sub_tenant_id=bad)


def test_a_refusal_does_not_quote_the_id():
    with pytest.raises(ValueError) as refused:
        TenantScope.root("org", "secret" + "x" * MAX_ID_BYTES)
    assert "secret" not in str(refused.value)


def test_ids_of_512_bytes_and_16_levels_are_taken():
    longest = "ü" * (MAX_ID_BYTES // 2)
    scope = TenantScope.root("kind0", longest)
    for number in range(1, MAX_LEVELS):
        scope = scope.child(f"kind{number}", longest)
    assert scope.scope_depth == MAX_LEVELS
    assert scope_address(scope)
    with pytest.raises(ValueError, match="at most 16"):
        scope.child("one more", "x")


def test_lone_surrogates_are_ids_like_any_other():
    scope = TenantScope.root("org", "\ud800").child("team", "\udfff")
    assert scope_address(scope) == ("\ud800", "org\x1f\ud800\x1fteam\x1f\udfff")
    assert TenantScope(tenant_id="\ud800", sub_tenant_id="\udfff").tenant_id == "\ud800"


def test_a_path_that_makes_no_sense_is_refused():
    org, team = ScopeLevel(kind="org", id="acme"), ScopeLevel(kind="team", id="a")
    with pytest.raises(InvalidInput, match="empty"):
        TenantScope.from_path([])
    for fields, reason in (
        ({"path_override": ()}, "empty"),
        ({"path_override": (org, org)}, "same kind"),
        ({"path_override": (team,)}, "tenant_id"),
        ({"path_override": (org, team), "sub_tenant_id": "b"}, "sub_tenant_id"),
        ({"path_override": (org,), "sub_tenant_id": "a"}, "sub_tenant_id"),
    ):
        with pytest.raises(ValueError, match=reason):
            TenantScope(tenant_id="acme", **fields)
    assert TenantScope(tenant_id="acme", path_override=(org, team)).scope_depth == 2


@given(PATHS)
def test_the_command_line_writes_every_scope(path):
    def escaped(part: str) -> str:
        return part.replace("%", "%25").replace("/", "%2F").replace("=", "%3D")

    text = "/".join(f"{escaped(kind)}={escaped(id_)}" for kind, id_ in path)
    assert parse_scope(text) == scope_of(path)


@pytest.mark.parametrize("text", ["", "org", "org=", "=acme", "org=a/", "org=a//b=c", "org=a/org=b", "org=a%1Fb"])
def test_a_command_line_scope_that_is_none_is_refused(text):
    with pytest.raises(InvalidInput):
        parse_scope(text)


@pytest.mark.parametrize("text", ["org=%FF", "org=a%C3"])
def test_bytes_that_are_no_text_are_refused_on_the_command_line(text):
    # Replaced by U+FFFD, two different ids would be one conversation.
    with pytest.raises(InvalidInput):
        parse_scope(text)


class TestTheReferencePackage:
    @pytest.fixture
    def reference(self):
        reason = "the reference package symfonic-core is not installed"
        module = pytest.importorskip("symfonic.core.scope", reason=reason)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            yield module

    def test_its_paths_are_ours(self, reference):
        @given(PATHS_OF_TEXT)
        def check(path):
            theirs = reference.TenantScope.from_path([reference.ScopeLevel(kind=k, id=i) for k, i in path])
            assert theirs.scope_path == scope_of(path).scope_path
            assert theirs.scope_depth == scope_of(path).scope_depth
            assert theirs.ancestor_prefix_paths() == scope_of(path).ancestor_prefix_paths()
            assert scope_address(theirs) == scope_address(scope_of(path))

        check()

    @pytest.mark.parametrize("sub", [None, "", "b"])
    def test_its_flat_scopes_are_ours(self, reference, sub):
        theirs = reference.TenantScope(tenant_id="acme", sub_tenant_id=sub, namespace="n")
        assert scope_address(theirs) == scope_address(TenantScope(tenant_id="acme", sub_tenant_id=sub))

    def test_an_empty_sub_tenant_whose_own_path_raises_is_the_tenant(self, reference):
        theirs = reference.TenantScope(tenant_id="acme", sub_tenant_id="")
        with pytest.raises(ValueError):
            theirs.scope_path  # noqa: B018 - reading it is what raises
        assert scope_address(theirs) == ("acme", "tenant\x1facme")

    @pytest.mark.parametrize("fields", [{"sub_tenant_id": " "}, {"tenant_id": "a\x1fb"}, {"tenant_id": "x" * 513}])
    def test_its_scope_without_an_address_is_refused_as_ours_would_be(self, reference, fields):
        theirs = reference.TenantScope(**{"tenant_id": "acme", **fields})
        with pytest.raises(InvalidInput):
            scope_address(theirs)


def test_anything_with_a_tenant_and_a_path_is_a_scope():
    assert scope_address(SimpleNamespace(tenant_id="acme", scope_path="org\x1facme")) == ("acme", "org\x1facme")


@pytest.mark.parametrize(
    "thing",
    [
        None,
        "org=acme",
        7,
        SimpleNamespace(tenant_id="acme"),
        SimpleNamespace(scope_path="org\x1facme"),
        SimpleNamespace(tenant_id=7, scope_path="org\x1facme"),
        SimpleNamespace(tenant_id="acme", scope_path=None),
        SimpleNamespace(tenant_id="acme", scope_path=""),
        SimpleNamespace(tenant_id="acme", scope_path="org\x1f"),
        SimpleNamespace(tenant_id="", scope_path="org\x1facme"),
        SimpleNamespace(tenant_id="a\x1fb", scope_path="org\x1facme"),
        SimpleNamespace(tenant_id="acme", scope_path="\x1f".join("x" * 33)),
        SimpleNamespace(tenant_id="acme", scope_path="org\x1f" + "x" * 513),
    ],
    ids=str,
)
def test_what_is_no_scope_is_refused(thing):
    with pytest.raises(InvalidInput):
        scope_address(thing)
