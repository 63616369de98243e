"""The subcommands on whole tenants: what there is, erasing it, and taking a conversation out and in."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from symfonic_redis import erasure, tenancy
from symfonic_redis.archive import export as archive_of
from symfonic_redis.archive import import_
from symfonic_redis.console import (
    LOCAL,
    AsJson,
    Deadline,
    Feed,
    Prefix,
    Scope,
    Url,
    app,
    notes,
    print_json,
    printable,
    run,
    screen,
)
from symfonic_redis.deployment import Deployment
from symfonic_redis.erasure import CLOSED_FOR, Purged
from symfonic_redis.errors import InvalidInput
from symfonic_redis.scope import SCOPE_PATH_DELIMITER, ScopeLike, TenantScope, format_scope, parse_scope

Tenant = Annotated[str, typer.Argument(help="The tenant's id, such as acme.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
ClosedFor = Annotated[float, typer.Option(help="Seconds for which writes are refused.")]
Tree = Annotated[bool, typer.Option("--tree", help="The scope and every scope below it.")]


@app.command()
def scopes(
    tenant: Tenant,
    url: Url = LOCAL,
    prefix: Prefix = "swm",
    deadline: Deadline = 5.0,
    limit: Annotated[int, typer.Option(min=1, max=tenancy.MAX_LIMIT, help="At most so many.")] = 50,
    before: Annotated[str | None, typer.Option(help="Go on after the last page, with what it printed.")] = None,
    as_json: AsJson = False,
) -> None:
    """List a tenant's scopes, recent first."""

    async def act(deployment: Deployment) -> None:
        page = await tenancy.scopes(deployment, tenant, limit=limit, before=before)
        if as_json:
            entries = [{**entry._asdict(), "scope": _shown(entry.scope)} for entry in page.entries]
            print_json({"scopes": entries, "before": page.before})
            return
        table = Table("scope", "last write", "expires")
        for entry in page.entries:
            times = [entry.last_write, entry.expires_at]
            table.add_row(*map(Text, (_shown(entry.scope), *(str(time)[:19] if time else "-" for time in times))))
        screen.print(table)
        if page.before:
            notes.print(Text(f"more follow: --before {page.before}"), soft_wrap=True)

    run(url, prefix, deadline, act)


@app.command()
def totals(
    tenant: Tenant, url: Url = LOCAL, prefix: Prefix = "swm", deadline: Deadline = 5.0, as_json: AsJson = False
) -> None:
    """Count a tenant's scopes, turns and nodes."""

    async def act(deployment: Deployment) -> None:
        with _bar("counting") as progress:
            found = await tenancy.totals(deployment, tenant, progress=progress)
        if as_json:
            print_json(found._asdict())
            return
        table = Table(show_header=False)
        table.add_row("scopes", f"{found.scopes:,}")
        table.add_row("turns", f"{found.turns:,}")
        for layer, count in found.nodes.items():
            table.add_row(f"{layer} nodes", f"{count:,}")
        screen.print(table)

    run(url, prefix, deadline, act)


@app.command()
def purge(
    scope: Scope,
    url: Url = LOCAL,
    prefix: Prefix = "swm",
    deadline: Deadline = 5.0,
    tree: Tree = False,
    closed_for: ClosedFor = CLOSED_FOR,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Erase all that a scope has, for good, and refuse writes to it for a while."""
    where = parse_scope(scope)
    _confirm(f"Erase {format_scope(where)}{' and everything below it' if tree else ''} for good?", yes=yes)

    async def act(deployment: Deployment) -> None:
        if tree:
            with _bar("purging") as progress:
                done = await erasure.purge_tree(deployment, where, closed_for=closed_for, progress=progress)
        else:
            done = await erasure.purge(deployment, where, closed_for=closed_for)
        _report(done, closed_for, as_json=as_json)

    run(url, prefix, deadline, act)


@app.command("purge-tenant")
def purge_tenant(
    tenant: Tenant,
    url: Url = LOCAL,
    prefix: Prefix = "swm",
    deadline: Deadline = 5.0,
    closed_for: ClosedFor = CLOSED_FOR,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Erase all that a tenant has, for good, and refuse its writes for a while."""
    _confirm(f"Erase everything of the tenant {printable(tenant)} for good?", yes=yes)

    async def act(deployment: Deployment) -> None:
        with _bar("purging") as progress:
            done = await erasure.purge_tenant(deployment, tenant, closed_for=closed_for, progress=progress)
        _report(done, closed_for, as_json=as_json)

    run(url, prefix, deadline, act)


@app.command()
def reopen(
    scope: Scope,
    url: Url = LOCAL,
    prefix: Prefix = "swm",
    deadline: Deadline = 5.0,
    tree: Tree = False,
    as_json: AsJson = False,
) -> None:
    """Take writes to a purged scope again; after `purge --tree`, with --tree."""
    where = parse_scope(scope)

    async def act(deployment: Deployment) -> None:
        done = await (erasure.reopen_tree if tree else erasure.reopen)(deployment, where)
        _report_reopened(done, as_json=as_json)

    run(url, prefix, deadline, act)


@app.command("reopen-tenant")
def reopen_tenant(
    tenant: Tenant, url: Url = LOCAL, prefix: Prefix = "swm", deadline: Deadline = 5.0, as_json: AsJson = False
) -> None:
    """Take writes of a purged tenant again."""

    async def act(deployment: Deployment) -> None:
        _report_reopened(await erasure.reopen_tenant(deployment, tenant), as_json=as_json)

    run(url, prefix, deadline, act)


@app.command("export")
def export_scope(
    scope: Scope,
    url: Url = LOCAL,
    prefix: Prefix = "swm",
    deadline: Deadline = 5.0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A new file; standard output unless given.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a scope as JSON lines: its turns, the evicted ones too, and its nodes."""
    where = parse_scope(scope)

    async def act(deployment: Deployment) -> None:
        with _target(output) as target:
            lines = 0
            async for line in archive_of(deployment, where):
                target.write(f"{line}\n")
                lines += 1
        if output is not None and as_json:
            print_json({"exported": format_scope(where), "file": str(output), "lines": lines})
        elif output is not None:
            typer.echo(f"{format_scope(where)} is in {output}, {lines} lines")

    run(url, prefix, deadline, act)


@app.command("import")
def import_scope(
    scope: Scope,
    file: Annotated[Path, typer.Argument(help="What `export` wrote; - for standard input.")],
    url: Url = LOCAL,
    prefix: Prefix = "swm",
    deadline: Deadline = 5.0,
    ttl: Annotated[float, typer.Option(help="Seconds after which the turns vanish; 0 keeps them.")] = 0.0,
    mirror_ttl: Annotated[float, typer.Option(help="Seconds after which the nodes vanish; 0 keeps them.")] = 0.0,
    feed: Feed = None,
    as_json: AsJson = False,
) -> None:
    """Bring what was exported into an empty scope, whole or not at all."""
    where = parse_scope(scope)
    lines = iter(sys.stdin) if str(file) == "-" else _Lines(file)

    async def act(deployment: Deployment) -> None:
        done = await import_(deployment, where, lines, ttl=ttl or None, mirror_ttl=mirror_ttl or None)
        if as_json:
            print_json(done._asdict())
        else:
            typer.echo(f"{format_scope(where)} holds {done.turns} turns and {done.nodes} nodes")

    run(url, prefix, deadline, act, feed=feed)


class _Lines:
    """A file's lines, from the beginning each time: an archive is gone through twice and never held whole."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __iter__(self) -> Iterator[str]:
        try:
            with self._path.open(encoding="utf-8") as lines:
                yield from lines
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(f"{self._path} cannot be read ({type(error).__name__}): check its name") from error


@contextmanager
def _target(output: Path | None) -> Iterator[TextIO]:
    if output is None:
        yield sys.stdout
        return
    try:
        with output.open("x", encoding="ascii") as target:
            yield target
    except OSError as error:
        raise InvalidInput(f"{output} cannot be written ({type(error).__name__}): name a new file") from error


@contextmanager
def _bar(what: str) -> Iterator[tenancy.Progress]:
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TextColumn("scopes"), TimeElapsedColumn())
    with Progress(*columns, console=notes, transient=True, disable=not notes.is_terminal) as progress:
        bar = progress.add_task("", total=None)
        yield lambda done, total: progress.update(bar, completed=done, total=total)


def _confirm(question: str, *, yes: bool) -> None:
    if not yes:
        typer.confirm(question, abort=True)


def _report(done: Purged, closed_for: float, *, as_json: bool) -> None:
    if as_json:
        print_json({**done._asdict(), "closed_for": closed_for})
    else:
        typer.echo(f"{done.scopes:,} scopes erased, {done.keys:,} keys; closed for {closed_for:g} s")


def _report_reopened(was_closed: Any, *, as_json: bool) -> None:
    if as_json:
        print_json({"was_closed": was_closed})
    else:
        typer.echo("open again" if was_closed else "it was not closed by such a purge; nothing changed")


def _shown(scope: ScopeLike) -> str:
    """A scope as the command line writes it; another package's bare path with its levels apart."""
    if isinstance(scope, TenantScope):
        return printable(format_scope(scope))
    return printable(scope.scope_path.replace(SCOPE_PATH_DELIMITER, " / "))
