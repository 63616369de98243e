"""The command line, run as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from agent_keys import ring
from transcript_file import SAMPLE, real_transcripts

from symfonic_redis import StreamGraphStore, WorkingLayer, connect, parse_scope
from symfonic_redis.scope import format_scope

SCOPE = "org=acme/conversation=c%2F1"


def run(*arguments, stdin=None, env=None):
    return subprocess.run(
        [sys.executable, "-m", "symfonic_redis.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        input=stdin,
        env={**os.environ, "COLUMNS": "200", **(env or {})},
    )


def answer(*arguments, **options):
    done = run(*arguments, "--json", **options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def fails(*arguments, **options):
    """Run what must fail; return its one line on standard error."""
    done = run(*arguments, **options)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.fixture
def at(valkey, prefix):
    return ("--url", valkey.url, "--prefix", prefix)


def test_push_context_and_clear(at):
    assert answer("push", SCOPE, "hello", "--speaker", "user", *at)["window_length"] == 1
    done = run("push", SCOPE, "\N{PARTY POPPER} there", "--speaker", "assistant", *at)
    assert done.stdout == "stored; turns in the window: 2; left it: 0\n"
    assert run("context", SCOPE, *at).stdout == "[working] user: hello\n[working] assistant: \N{PARTY POPPER} there\n"
    assert [entry["content"] for entry in answer("context", SCOPE, *at)] == ["hello", "\N{PARTY POPPER} there"]
    assert "Aborted" in run("clear", SCOPE, *at, stdin="n\n").stderr
    assert len(answer("context", SCOPE, *at)) == 2
    assert run("clear", SCOPE, "--yes", *at).returncode == 0
    assert answer("context", SCOPE, *at) == []


def test_a_key_stores_a_turn_once(at):
    assert not answer("push", SCOPE, "hello", "--key", "job-1", *at)["duplicate"]
    assert answer("push", SCOPE, "hello", "--key", "job-1", *at)["duplicate"]
    assert "stored before" in run("push", SCOPE, "hello", "--key", "job-1", *at).stdout


async def test_clear_empties_the_mirror_unless_told_not_to(valkey, prefix, at):
    scope = parse_scope(SCOPE)
    async with connect(valkey.url, prefix=prefix) as redis:
        graph = StreamGraphStore(redis)
        answer("push", SCOPE, "hello", *at)
        answer("clear", SCOPE, "--yes", "--no-mirror", *at)
        assert await graph.count(scope) == 1
        answer("clear", SCOPE, "--yes", *at)
        assert await graph.count(scope) == 0


def test_init_and_health(at):
    assert "is ready" in run("init", *at).stdout
    found = answer("health", *at)
    assert (found["server"], found["role"], found["aof"]) == ("valkey", "master", "off")
    assert "appendonly yes" in run("health", *at).stdout


def test_the_url_may_come_from_the_environment(valkey, prefix):
    env = {"SYMFONIC_REDIS_URL": valkey.url}
    assert answer("health", "--prefix", prefix, env=env)["endpoint"] == f"127.0.0.1:{valkey.port}"


def test_errors_are_one_line_without_the_password():
    down = fails("context", SCOPE, "--url", "redis://user:hunter2@127.0.0.1:1/0", "--deadline", "0.3")
    assert "127.0.0.1:1" in down
    assert "hunter2" not in down
    assert "hunter2" not in fails("context", SCOPE, "--url", "nonsense://user:hunter2@host")
    assert "kind=id" in fails("context", "acme")
    assert "max_entries" not in fails("push", "org= ", "text")


def test_a_traceback_only_with_debug():
    done = run("--debug", "context", SCOPE, "--url", "nonsense://")
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_a_wrong_option_exits_with_two():
    assert run("context", SCOPE, "--window", "0").returncode == 2
    assert run("nonsense").returncode == 2


def test_the_demo_holds():
    ending = answer("demo")
    assert len(ending["window"]) == 10
    assert [check["holds"] for check in ending["checks"]] == [True, True, True]


def test_the_demo_shows_its_story():
    done = run("demo", "--pause", "0")
    assert done.returncode == 0
    assert "SIGKILL" in done.stdout
    assert done.stdout.count("yes ") == 3


def test_a_replay_names_broken_lines_and_plays_the_rest(tmp_path, at):
    path = tmp_path / "chats.jsonl"
    path.write_text(SAMPLE.read_text("utf-8") + "{broken\n", "utf-8")
    done = run("replay", str(path), "--scope", "org=acme", "--workers", "3", *at)
    assert done.returncode == 0
    assert "line 4: not JSON" in done.stderr
    assert "yes (3 of 3)" in done.stdout
    # A second time the conversations are not empty: nothing is written, and it says what to do.
    assert "holds turns already" in fails("replay", str(SAMPLE), "--scope", "org=acme", *at)


def test_a_file_without_conversations_is_refused(tmp_path):
    path = tmp_path / "empty.jsonl"
    path.write_text("\n")
    assert "no conversation" in fails("replay", str(path))


async def test_real_transcripts_end_with_their_last_ten_turns(server, prefix):
    """Compared with the file itself, read here by other code than the package's."""
    path = real_transcripts()
    report = answer(
        "replay", str(path), "--scope", "org=air", "--workers", "4", "--url", server.url, "--prefix", prefix
    )
    assert report["order_correct"]
    assert len([turns for turns in report["served"].values() if turns]) == 4
    async with connect(server.url, prefix=prefix) as redis:
        layer = WorkingLayer(redis)
        checked = 0
        for line in path.read_text("utf-8").splitlines():
            record = json.loads(line)
            said = [
                (message["role"], message["content"])
                for message in record["messages"]
                if message["role"] in ("user", "assistant") and (message["content"] or "").strip()
            ]
            scope = parse_scope("org=air").child("conversation", record["conversation_id"])
            window = await layer.get_context(scope)
            assert [(entry.metadata["speaker"], entry.content) for entry in window] == said[-10:]
            checked += 1
    assert checked == 120


def test_scopes_are_written_as_they_are_read():
    for text in ("org=acme", "org=a%2Fb/c=%3D%25", "x=ü ñ"):
        scope = parse_scope(text)
        assert parse_scope(format_scope(scope)) == scope


def keys(name: str) -> dict[str, str]:
    here = os.path.dirname(__file__)  # noqa: PTH120 - a part of PYTHONPATH
    return {"SYMFONIC_REDIS_KEYRING": name, "PYTHONPATH": f"{here}:{os.environ.get('PYTHONPATH', '')}"}


async def test_the_command_line_takes_its_keys_from_a_function_that_the_environment_names(valkey, prefix, at):
    env = keys("agent_keys:ring")
    assert answer("push", SCOPE, "hello", "--speaker", "user", *at, env=env)["window_length"] == 1
    assert [entry["content"] for entry in answer("context", SCOPE, *at, env=env)] == ["hello"]
    assert "encryption=Keyring" in fails("context", SCOPE, *at)
    async with connect(valkey.url, prefix=prefix, encryption=ring()) as redis:
        assert [entry.content for entry in await WorkingLayer(redis).get_context(parse_scope(SCOPE))] == ["hello"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_such_module:ring", "cannot be imported"),
        ("agent_keys:CLI_KEY", "is no function"),
        ("builtins:str", "must be a Keyring"),
    ],
)
def test_what_gives_no_keyring_is_refused(at, name, said):
    assert said in fails("context", SCOPE, *at, env=keys(name))


def test_the_workers_of_a_replay_have_the_keys_too(at):
    env = keys("agent_keys:ring")
    report = answer("replay", str(SAMPLE), "--workers", "2", *at, env=env)
    assert report["turns_pushed"] > 0
    assert report["order_correct"]
