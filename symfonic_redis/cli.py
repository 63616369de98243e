"""The `symfonic-redis` command: what it needs, and how it reports what went wrong.

An error is one line on standard error and a non-zero exit: 1 for ours, 2 for a wrong option, 130 when interrupted. A
traceback is shown only with `--debug`, which may stand anywhere on the line.
"""

from __future__ import annotations

import sys
from typing import NoReturn

from symfonic_redis.errors import SymfonicRedisError


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; exits the process."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    # Only before `--`: what follows it is content, whatever it says.
    options = given[: given.index("--")] if "--" in given else given
    debug = "--debug" in options
    given = [argument for argument in options if argument != "--debug"] + given[len(options) :]
    try:
        # Typer and rich are an extra; importing these adds their subcommands to the app.
        from symfonic_redis import commands, commands_acl, commands_feed, commands_tenant  # noqa: F401, PLC0415 - the same
        from symfonic_redis.console import app  # noqa: PLC0415 - the same
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        _fail("the command line needs two more packages: install symfonic-redis[cli]")
    try:
        app(given, prog_name="symfonic-redis")
    except SymfonicRedisError as error:
        if debug:
            raise
        _fail(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        if debug:
            raise
        _fail(f"the output cannot be written: {error.strerror}")


def _fail(message: str) -> NoReturn:
    sys.stderr.write(f"error: {message}\n")
    sys.exit(1)


if __name__ == "__main__":
    main()
