"""The command line on whole tenants, run as a user runs it."""

from __future__ import annotations

import json

import pytest
from test_cli import answer, fails, run

SCOPE = "org=acme/conversation=c-1"


@pytest.fixture
def at(valkey, prefix):
    return ("--url", valkey.url, "--prefix", prefix)


@pytest.fixture
def filled(at):
    for number in (1, 2, 3):
        answer("push", f"org=acme/conversation=c-{number}", f"hello {number}", *at)
    answer("push", "org=globex/conversation=c-1", "hello", *at)
    return at


def test_scopes_and_totals(filled):
    page = answer("scopes", "acme", "--limit", "2", *filled)
    assert [one["scope"] for one in page["scopes"]] == ["org=acme/conversation=c-3", "org=acme/conversation=c-2"]
    assert page["scopes"][0]["expires_at"] is None
    rest = answer("scopes", "acme", "--before", page["before"], *filled)
    assert [one["scope"] for one in rest["scopes"]] == [SCOPE]
    assert rest["before"] is None
    shown = run("scopes", "acme", "--limit", "2", *filled)
    assert "org=acme/conversation=c-3" in shown.stdout
    assert f"--before {page['before']}" in shown.stderr
    found = answer("totals", "acme", *filled)
    assert (found["scopes"], found["turns"], found["nodes"]["working"]) == (3, 3, 3)
    assert "working nodes" in run("totals", "acme", *filled).stdout
    assert "before" in fails("scopes", "acme", "--before", "x", *filled)


def test_purging_and_reopening_a_scope(filled):
    assert "Aborted" in run("purge", SCOPE, *filled, stdin="n\n").stderr
    done = answer("purge", SCOPE, "--yes", "--closed-for", "60", *filled)
    assert (done["scopes"], done["closed_for"]) == (1, 60)
    assert "reopen" in fails("push", SCOPE, "late", *filled)
    assert answer("reopen", SCOPE, *filled) == {"was_closed": True}
    assert "not closed" in run("reopen", SCOPE, *filled).stdout
    assert answer("push", SCOPE, "again", *filled)["window_length"] == 1
    assert "closed_for" in fails("purge", SCOPE, "--yes", "--closed-for", "0", *filled)


def test_purging_and_reopening_a_tree(filled):
    assert answer("purge", "org=acme", "--tree", "--yes", *filled)["scopes"] == 3
    assert "closed" in fails("push", SCOPE, "late", *filled)
    assert answer("reopen", "org=acme", *filled) == {"was_closed": False}
    assert run("reopen", "org=acme", "--tree", *filled).stdout == "open again\n"
    assert answer("push", SCOPE, "again", *filled)["window_length"] == 1


def test_purging_and_reopening_a_tenant(filled):
    assert "Aborted" in run("purge-tenant", "acme", *filled, stdin="\n").stderr
    assert "3 scopes erased" in run("purge-tenant", "acme", "--yes", *filled).stdout
    assert answer("totals", "acme", *filled)["scopes"] == 0
    assert answer("totals", "globex", *filled)["scopes"] == 1
    assert "closed" in fails("push", SCOPE, "late", *filled)
    assert answer("reopen-tenant", "acme", *filled) == {"was_closed": True}
    assert answer("push", SCOPE, "again", *filled)["window_length"] == 1


def test_export_and_import(filled, tmp_path):
    path = tmp_path / "c-1.jsonl"
    assert "4 lines" in run("export", SCOPE, "--output", str(path), *filled).stdout
    assert "new file" in fails("export", SCOPE, "--output", str(path), *filled)
    said = run("export", SCOPE, *filled).stdout
    assert said == path.read_text("ascii")
    assert json.loads(said.splitlines()[1])["content"] == "hello 1"
    assert "not empty" in fails("import", SCOPE, str(path), *filled)
    copy = "org=globex/conversation=copy"
    assert answer("import", copy, str(path), "--ttl", "60", *filled) == {"turns": 1, "nodes": 1}
    assert [entry["content"] for entry in answer("context", copy, *filled)] == ["hello 1"]
    assert "1 turns and 1 nodes" in run("import", "org=globex/c=piped", "-", *filled, stdin=said).stdout


def test_what_cannot_be_imported_is_one_line(filled, tmp_path):
    path = tmp_path / "damaged.jsonl"
    path.write_bytes(b'{"archive": "symfonic-redis", "version": 1}\n{"turn": 1}\n')
    assert "line 2" in fails("import", "org=acme/c=new", str(path), *filled)
    path.write_bytes(b"\xff\xfe")
    assert "cannot be read" in fails("import", "org=acme/c=new", str(path), *filled)
    assert "cannot be read" in fails("import", "org=acme/c=new", str(tmp_path / "none"), *filled)
    assert answer("scopes", "acme", *filled)["scopes"][0]["scope"] == "org=acme/conversation=c-3"
