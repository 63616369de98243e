"""What the subcommands share: the application, its options, and how they print."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import typer
from rich.console import Console

from symfonic_redis.connection import connect
from symfonic_redis.deployment import Deployment
from symfonic_redis.named import keyring

app = typer.Typer(
    help="Working memory for AI agents that many workers share, native to Redis.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    epilog="Errors are one line and a non-zero exit; add --debug for a traceback.",
)
screen = Console()
notes = Console(stderr=True)

Url = Annotated[
    str, typer.Option(envvar="SYMFONIC_REDIS_URL", show_envvar=True, show_default=True, help="Where the server is.")
]
Prefix = Annotated[str, typer.Option(help="Starts every key.")]
Deadline = Annotated[float, typer.Option(help="Seconds a call may take, retries included.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Feed = Annotated[
    int | None,
    typer.Option(
        min=1,
        envvar="SYMFONIC_REDIS_FEED",
        show_envvar=True,
        help="Changes the deployment's feeds keep, the same for all that write; no feed unless given.",
    ),
]
Scope = Annotated[str, typer.Argument(help="Whose conversation, such as org=acme/conversation=c-123.")]
Window = Annotated[int, typer.Option(min=1, help="Turns the window holds.")]

LONGEST_NUMBER = 10_000
"""Bits; Python writes longer numbers in decimal only when told to."""

LOCAL = "redis://localhost:6379/0"


def run(
    url: str,
    prefix: str,
    deadline: float,
    act: Callable[[Deployment], Awaitable[None]],
    *,
    feed: int | None = None,
) -> None:
    """Open a deployment, with a feed or without, and with the keys that the environment names; act on it, close it."""

    async def opened() -> None:
        ring = keyring()
        async with connect(url, prefix=prefix, deadline=deadline, feed=feed, encryption=ring) as deployment:
            await act(deployment)

    asyncio.run(opened())


def print_json(value: Any) -> None:
    """Print a value as JSON: keys as text, what JSON has no type for as text, no number as null."""
    # ASCII: a lone surrogate has no UTF-8 form.
    typer.echo(json.dumps(_plain(value), indent=2, allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int) and value.bit_length() > LONGEST_NUMBER:
        return hex(value)
    return value if isinstance(value, str | int | bool | None) else str(value)


def printable(text: str) -> str:
    """A text for a terminal: what moves its cursor is escaped, and further lines are set in."""
    shown = (c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)
    return "".join(shown).replace("\n", "\n    ")
