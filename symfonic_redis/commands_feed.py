"""The subcommands of `symfonic-redis` on the feed: watch changes, and relay them into a graph backend."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from symfonic_redis.changes import MISSED, Change
from symfonic_redis.console import (
    LOCAL,
    AsJson,
    Deadline,
    Feed,
    Prefix,
    Url,
    app,
    notes,
    print_json,
    printable,
    run,
    screen,
)
from symfonic_redis.deployment import Deployment
from symfonic_redis.errors import InvalidInput
from symfonic_redis.feed import watch as follow
from symfonic_redis.named import factory
from symfonic_redis.progress import RelayStatus, relay_status
from symfonic_redis.relay import Relay
from symfonic_redis.scope import TenantScope, format_scope, parse_scope

_FEED = 1000


@app.command()
def watch(
    scope: Annotated[str | None, typer.Argument(help="Whose changes, such as org=acme/conversation=c-123.")] = None,
    tenant: Annotated[str | None, typer.Option(help="All scopes of this tenant instead.")] = None,
    after: Annotated[
        str | None, typer.Option(help="Resume after this cursor; 0 for the oldest kept; from now on unless given.")
    ] = None,
    count: Annotated[int, typer.Option(min=0, help="End after so many changes; 0 for never.")] = 0,
    url: Url = LOCAL,
    prefix: Prefix = "swm",
    deadline: Deadline = 15.0,
    feed: Feed = _FEED,
    as_json: AsJson = False,
) -> None:
    """Print changes as they happen, one a line, with their cursors in JSON; say how many were missed."""
    if (scope is None) == (tenant is None):
        raise InvalidInput("watch one thing: a scope, or --tenant and a tenant's id")
    whose = parse_scope(scope) if scope is not None else str(tenant)

    async def act(deployment: Deployment) -> None:
        seen = 0
        async for change in follow(deployment, whose, after=after):
            typer.echo(json.dumps(_record(change), default=str) if as_json else printable(_line(change)))
            seen += 1
            if seen == count:
                return

    run(url, prefix, deadline, act, feed=feed)


def _record(change: Change) -> dict[str, Any]:
    return {
        "kind": change.kind,
        "tenant": change.tenant,
        "partition": change.partition,
        "sequence": change.sequence,
        "scope": _where(change),
        "at": change.at,
        "layer": change.layer,
        "node_id": change.node_id,
        "node": change.node and change.node.model_dump(warnings=False),
        "entry": change.entry and change.entry.model_dump(warnings=False),
        "updates": change.updates,
        "count": change.count,
        "mirror": change.mirror,
        "cursor": change.cursor,
    }


def _where(change: Change) -> str | None:
    if isinstance(change.address, TenantScope):
        return format_scope(change.address)
    return None if change.address is None else change.address.scope_path.replace("\x1f", "/")


def _line(change: Change) -> str:
    if change.kind == MISSED:
        lost = (
            "an unknown number of changes, for the feed was erased"
            if change.count is None
            else f"{change.count} changes"
        )
        return f"missed {lost}: gone from partition {change.partition} before they were read"
    at = change.at.isoformat(timespec="milliseconds") if change.at else ""
    what = ""
    if change.entry is not None:
        what = f"{change.entry.metadata.get('speaker', '')}: {change.entry.content}"
    elif change.node is not None:
        what = change.node.label
    elif change.count is not None:
        what = str(change.count)
    return " ".join(filter(None, (at, change.kind, _where(change), change.node_id, what.replace("\n", " "))))


@app.command()
def relay(
    target: Annotated[
        str | None, typer.Argument(help="What returns the graph backend, such as mypackage.backends:make.")
    ] = None,
    name: Annotated[str, typer.Option(help="Processes of one name share the work.")] = "relay",
    status: Annotated[bool, typer.Option("--status", help="Say how far the relay is, and end.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Copy what is due now, and end.")] = False,
    attempts: Annotated[int, typer.Option(min=1, help="Tries of a change before it is a dead letter.")] = 10,
    lease: Annotated[float, typer.Option(min=0.5, help="Seconds after which a silent process is replaced.")] = 15.0,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds for one call to the target.")] = 30.0,
    url: Url = LOCAL,
    prefix: Prefix = "swm",
    deadline: Deadline = 15.0,
    feed: Feed = _FEED,
    as_json: AsJson = False,
) -> None:
    """Copy nodes into a graph backend until stopped; start as many processes as you like."""
    if status:
        run(url, prefix, deadline, lambda deployment: _show(deployment, name, as_json=as_json), feed=feed)
        return
    if target is None:
        raise InvalidInput("name the target as module:factory, or ask for --status")
    make = factory(target, "target")

    async def act(deployment: Deployment) -> None:
        backend = make()
        if asyncio.iscoroutine(backend):
            backend = await backend
        worker = Relay(deployment, backend, name=name, attempts=attempts, lease=lease, timeout=timeout)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, worker.stop)
        notes.print(Text(f"relaying from {deployment.endpoint} into {target}; interrupt to stop"))
        handled = await (worker.drain() if once else worker.run())
        if as_json:
            print_json({"handled": handled})
        else:
            typer.echo(f"{handled} changes handled")

    run(url, prefix, deadline, act, feed=feed)


async def _show(deployment: Deployment, name: str, *, as_json: bool) -> None:
    found: RelayStatus = await relay_status(deployment, name)
    if as_json:
        print_json(found.model_dump())
        return
    table = Table(title=Text(f"Relay {name}"), title_justify="left")
    columns = ("tenant", "changes", "handled", "lag", "pending", "trimmed", "dead")
    for column in columns:
        table.add_column(column, justify="left" if column == "tenant" else "right")
    for tenant in found.tenants:
        table.add_row(*(Text(printable(str(getattr(tenant, column)))) for column in columns))
    screen.print(table)
    if found.trimmed:
        screen.print(Text("! Changes were gone before the relay read them: raise feed, or run more relays."))
