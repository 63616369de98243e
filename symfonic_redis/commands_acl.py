"""The subcommand that writes the rules of an ACL user. It asks no server."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from symfonic_redis.acl import acl_rules
from symfonic_redis.console import AsJson, Prefix, app, print_json
from symfonic_redis.errors import InvalidInput


@app.command()
def acl(
    tenant: Annotated[str | None, typer.Option(help="Whose keys; every tenant's unless given.")] = None,
    prefix: Prefix = "swm",
    read_only: Annotated[bool, typer.Option("--read-only", help="Reading alone.")] = False,
    tracking: Annotated[bool, typer.Option("--tracking", help="Also what `track_windows` needs.")] = False,
    database: Annotated[int, typer.Option(min=0, help="The database in the URL.")] = 0,
    server: Annotated[str, typer.Option(help="The server's version; 7.2 for Valkey.")] = "7.0",
    as_json: AsJson = False,
) -> None:
    """Print the rules of a user that runs this package on its own keys and nothing else.

    They go after `ACL SETUSER name on >password`, or into an ACL file after `user name on #hash`.
    """
    found = re.fullmatch(r"([0-9]{1,4})\.([0-9]{1,4})(\.[0-9]+)*", server)
    if not found:
        raise InvalidInput("the server's version is written as 7.0: correct it")
    rules = acl_rules(
        tenant,
        prefix=prefix,
        read_only=read_only,
        tracking=tracking,
        database=database,
        version=(int(found[1]), int(found[2])),
    )
    if as_json:
        print_json(list(rules))
    else:
        typer.echo(" ".join(rules))
