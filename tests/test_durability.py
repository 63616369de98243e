"""What a crash can take: the rows of the table in docs/topologies.md."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
import redis as sync_redis
from own_server import own_server
from seen import texts
from topologies import FAST, until

from symfonic_redis import MemoryUnavailable, NotReplicated, WorkingLayer, connect

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("fsync", ["always", "everysec", "no"])
async def test_a_killed_server_keeps_every_turn_of_its_append_only_file(prefix, scope, turn, fsync):
    with own_server("--appendonly", "yes", "--appendfsync", fsync) as server:
        async with connect(server.url, prefix=prefix) as deployment:
            layer = WorkingLayer(deployment)
            await layer.push_many(scope, [turn(), turn()])
            await layer.push(scope, turn())
            # The process dies, and the machine does not: what was written is in the system's hands.
            server.kill()
            server.start()
            assert texts(await layer.get_context(scope)) == ["turn 1", "turn 2", "turn 3"]


async def test_a_killed_server_without_an_append_only_file_forgets(prefix, scope, turn):
    with own_server() as server:
        async with connect(server.url, prefix=prefix) as deployment:
            layer = WorkingLayer(deployment)
            await layer.push(scope, turn())
            server.kill()
            server.start()
            assert await layer.get_context(scope) == []


@pytest.mark.parametrize("min_replicas", [0, 1])
async def test_a_master_that_dies_before_its_replica_has_a_turn_takes_it_along(prefix, scope, turn, min_replicas):
    with own_server(*FAST) as master, own_server(*FAST) as replica:
        with sync_redis.Redis(port=replica.port) as admin:
            admin.replicaof("127.0.0.1", master.port)
            until(lambda: admin.info("replication")["master_link_status"] == "up")
            async with connect(master.url, prefix=prefix, min_replicas=min_replicas, attempt_timeout=3) as deployment:
                layer = WorkingLayer(deployment)
                # Known to have it, so that it has the configuration too.
                await deployment.call("wait", "WAIT", 1, 5000)
                replica.signal(signal.SIGSTOP)
                # Long ones, of which a replica that stands still takes no more than its socket holds.
                said = [layer.push(scope, turn("x" * 900_000)) for _ in range(8)]
                if min_replicas:
                    with pytest.raises(NotReplicated):
                        await said[0]
                    for one in said[1:]:
                        one.close()
                else:
                    assert [(await one).window_length for one in said] == list(range(1, 9))
                master.kill()
            replica.signal(signal.SIGCONT)
            admin.replicaof("NO", "ONE")
        async with connect(replica.url, prefix=prefix) as deployment:
            assert len(await WorkingLayer(deployment).get_context(scope)) < 8


async def test_a_master_that_misses_its_replicas_may_refuse_writes_by_itself(prefix, scope, turn):
    with own_server("--min-replicas-to-write", "0") as server, sync_redis.Redis(port=server.port) as admin:
        async with connect(server.url, prefix=prefix, deadline=0.5) as deployment:
            layer = WorkingLayer(deployment)
            await layer.push(scope, turn())
            admin.config_set("min-replicas-to-write", "1")
            with pytest.raises(MemoryUnavailable, match="NOREPLICAS"):
                await layer.push(scope, turn())
            admin.config_set("min-replicas-to-write", "0")
            assert (await layer.push(scope, turn())).window_length == 2


def test_every_row_of_the_table_names_a_test_that_there_is():
    text = (ROOT / "docs" / "topologies.md").read_text("utf-8")
    rows = [row for row in text.splitlines() if row.startswith("| ") and "`test_" in row]
    assert len(rows) >= 8
    for row in rows:
        for file, name in re.findall(r"`(test_\w+)\.py::(test_\w+)`", row):
            assert f"def {name}(" in (ROOT / "tests" / f"{file}.py").read_text("utf-8"), f"{file}::{name}"
        assert "::test_" in row
