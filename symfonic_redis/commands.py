"""The subcommands of `symfonic-redis`. Each opens a deployment, does one thing, and shows it as text or as JSON."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import typer
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from symfonic_redis import demo as story
from symfonic_redis.console import (
    LOCAL,
    AsJson,
    Deadline,
    Feed,
    Prefix,
    Scope,
    Url,
    Window,
    app,
    notes,
    print_json,
    printable,
    run,
    screen,
)
from symfonic_redis.deployment import Deployment
from symfonic_redis.errors import InvalidInput, SymfonicRedisError
from symfonic_redis.graph import StreamGraphStore
from symfonic_redis.health import health as ask
from symfonic_redis.layer import WorkingLayer
from symfonic_redis.models import MemoryEntry
from symfonic_redis.replay import Report
from symfonic_redis.replay import replay as play
from symfonic_redis.scope import TenantScope, format_scope, parse_scope
from symfonic_redis.transcripts import BrokenLine, read_transcripts


@app.command()
def demo(
    url: Url = "embedded://",
    prefix: Prefix = "swm",
    deadline: Deadline = 15.0,
    pause: Annotated[float, typer.Option(min=0.0, help="Seconds between turns.")] = 0.15,
    as_json: AsJson = False,
) -> None:
    """Show it: three workers share a conversation, one is killed, nothing is lost or doubled."""

    async def act(deployment: Deployment) -> None:
        def tell(line: str) -> None:
            if not as_json:
                screen.print(Text(line))

        ending = await story.demo(deployment, tell, pause=0.0 if as_json else pause)
        if as_json:
            print_json({"window": ending.window, "checks": [asdict(check) for check in ending.checks]})
        else:
            lines = Text("\n".join(ending.window))
            screen.print(Panel(lines, title="The window, as any worker reads it", title_align="left"))
            for check in ending.checks:
                screen.print(f"[{'green' if check.holds else 'red'}]{'yes' if check.holds else 'NO '}[/] {check.claim}")
        if not ending.holds:
            raise SymfonicRedisError("the demo's checks do not all hold: this is a bug, please report it")

    run(url, prefix, deadline, act)


@app.command()
def replay(
    file: Annotated[Path, typer.Argument(help="A file of JSON lines, one conversation each.")],
    scope: Annotated[str | None, typer.Option(help="The parent of the conversations; a new one unless given.")] = None,
    url: Url = "embedded://",
    prefix: Prefix = "swm",
    deadline: Deadline = 15.0,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Worker processes.")] = 2,
    window: Window = 10,
    ttl: Annotated[float, typer.Option(help="Seconds after which all of it vanishes; 0 keeps it.")] = 3600.0,
    as_json: AsJson = False,
) -> None:
    """Play chat transcripts through worker processes and check what the server holds afterwards."""
    conversations, broken = read_transcripts(file)
    for line in broken:
        notes.print(Text(f"line {line.number}: {line.reason}"))
    if not conversations:
        raise InvalidInput(f"{file} holds no conversation that could be read")
    base = parse_scope(scope) if scope else TenantScope.root("replay", uuid4().hex[:8])

    async def act(deployment: Deployment) -> None:
        columns = (TextColumn("playing"), BarColumn(), MofNCompleteColumn(), TextColumn("turns"), TimeElapsedColumn())
        with Progress(*columns, console=notes, transient=True, disable=not notes.is_terminal) as progress:
            bar = progress.add_task("", total=sum(len(conversation.turns) for conversation in conversations))
            report = await play(
                deployment,
                conversations,
                base,
                workers=workers,
                window=window,
                ttl=ttl or None,
                on_turn=lambda: progress.advance(bar),
            )
        if as_json:
            print_json(_replay_record(report, base, broken))
        else:
            screen.print(_replay_table(report, base, window))
        for outcome in report.outcomes:
            if outcome.refused:
                notes.print(Text(f"{outcome.conversation}: after {outcome.pushed} turns {outcome.refused}"))
        if not report.correct:
            wrong = [outcome.conversation for outcome in report.outcomes if not outcome.correct]
            raise SymfonicRedisError(f"{len(wrong)} conversations ended wrong, the first is {wrong[0]}")

    run(url, prefix, deadline, act)


def _replay_record(report: Report, base: TenantScope, broken: list[BrokenLine]) -> dict[str, Any]:
    return {
        "scope": format_scope(base),
        "conversations": len(report.outcomes),
        "turns_pushed": report.pushed,
        "turns_evicted": sum(outcome.evicted for outcome in report.outcomes),
        "order_correct": report.correct,
        "seconds": report.seconds,
        "turns_a_second": report.pushed / report.seconds,
        "served": report.served,
        "broken_lines": [asdict(line) for line in broken],
        "outcomes": [asdict(outcome) for outcome in report.outcomes],
    }


def _replay_table(report: Report, base: TenantScope, window: int) -> Table:
    lengths = [outcome.window for outcome in report.outcomes]
    right = sum(outcome.correct for outcome in report.outcomes)
    table = Table(title=Text(f"Replay into {format_scope(base)}"), title_justify="left", show_header=False)
    for name, value in (
        ("conversations", f"{len(report.outcomes)}"),
        ("turns pushed", f"{report.pushed:,}"),
        ("turns evicted", f"{sum(outcome.evicted for outcome in report.outcomes):,}"),
        ("window length", f"{min(lengths)} to {max(lengths)} (at most {window})"),
        ("order correct", f"{'yes' if report.correct else 'NO'} ({right} of {len(report.outcomes)})"),
        ("turns a second", f"{report.pushed / report.seconds:,.0f}"),
        ("served by", ", ".join(f"{name} {turns:,}" for name, turns in report.served.items())),
    ):
        table.add_row(name, value)
    return table


@app.command()
def context(
    scope: Scope,
    url: Url = LOCAL,
    prefix: Prefix = "swm",
    deadline: Deadline = 5.0,
    window: Window = 10,
    as_json: AsJson = False,
) -> None:
    """Print a conversation's window, oldest first."""
    where = parse_scope(scope)

    async def act(deployment: Deployment) -> None:
        layer = WorkingLayer(deployment, window)
        entries = await layer.get_context(where)
        if as_json:
            print_json([entry.model_dump(warnings=False) for entry in entries])
            return
        for entry in entries:
            typer.echo(printable(layer.render_for_prompt(entry)))

    run(url, prefix, deadline, act)


@app.command()
def push(
    scope: Scope,
    content: Annotated[str, typer.Argument(help="What was said.")],
    url: Url = LOCAL,
    prefix: Prefix = "swm",
    deadline: Deadline = 5.0,
    window: Window = 10,
    speaker: Annotated[str, typer.Option(help="Who said it.")] = "user",
    turn_id: Annotated[str | None, typer.Option(help="The turn's id; a random one unless given.")] = None,
    key: Annotated[str | None, typer.Option(help="Store it only once under this idempotency key.")] = None,
    mirror: Annotated[bool, typer.Option(help="Mirror it into the graph stream.")] = True,
    ttl: Annotated[float, typer.Option(help="Seconds after which the window vanishes; 0 keeps it.")] = 0.0,
    feed: Feed = None,
    as_json: AsJson = False,
) -> None:
    """Append one turn to a conversation."""
    where = parse_scope(scope)

    async def act(deployment: Deployment) -> None:
        layer = WorkingLayer(deployment, window, StreamGraphStore(deployment) if mirror else None, ttl=ttl or None)
        entry = MemoryEntry.turn(where, speaker=speaker, turn_id=turn_id or uuid4().hex[:12], content=content)
        receipt = await layer.push(where, entry, idempotency_key=key)
        if as_json:
            print_json(receipt._asdict())
        elif receipt.duplicate:
            typer.echo(f"stored before under this key; turns in the window: {receipt.window_length}")
        else:
            typer.echo(f"stored; turns in the window: {receipt.window_length}; left it: {receipt.evicted}")

    run(url, prefix, deadline, act, feed=feed)


@app.command()
def clear(
    scope: Scope,
    url: Url = LOCAL,
    prefix: Prefix = "swm",
    deadline: Deadline = 5.0,
    mirror: Annotated[bool, typer.Option(help="Empty the working layer's mirror too.")] = True,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    feed: Feed = None,
    as_json: AsJson = False,
) -> None:
    """Empty a conversation's window, its evicted turns and its mirror."""
    where = parse_scope(scope)
    if not yes:
        typer.confirm(f"Empty {format_scope(where)}?", abort=True)

    async def act(deployment: Deployment) -> None:
        await WorkingLayer(deployment, graph_store=StreamGraphStore(deployment) if mirror else None).clear(where)
        if as_json:
            print_json({"cleared": format_scope(where), "mirror": mirror})
        else:
            typer.echo(f"{format_scope(where)} is empty")

    run(url, prefix, deadline, act, feed=feed)


@app.command()
def init(url: Url = LOCAL, prefix: Prefix = "swm", deadline: Deadline = 5.0, as_json: AsJson = False) -> None:
    """Write a prefix's configuration, as a user who may; workers with fewer rights then only read it."""

    async def act(deployment: Deployment) -> None:
        if as_json:
            print_json({"prefix": deployment.prefix, "endpoint": deployment.endpoint})
        else:
            typer.echo(f"the prefix {deployment.prefix!r} on {deployment.endpoint} is ready")

    run(url, prefix, deadline, act)


@app.command()
def health(url: Url = LOCAL, prefix: Prefix = "swm", deadline: Deadline = 5.0, as_json: AsJson = False) -> None:
    """Say what the server is, and whether it keeps what it is given."""

    async def act(deployment: Deployment) -> None:
        found = (await ask(deployment)).model_dump()
        if as_json:
            print_json(found)
            return
        advice = found.pop("advice")
        table = Table(show_header=False)
        for name, value in found.items():
            table.add_row(name.replace("_", " "), Text(str(value)))
        screen.print(table)
        for line in advice:
            screen.print(Text(f"! {line}"))

    run(url, prefix, deadline, act)
