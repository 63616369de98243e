"""The Lua scripts: found, completed with what they include, and hashed, once per process.

They live in `lua/`, one job a file. A wheel carries that folder inside the package; an editable install finds it
beside the package in the repository.
"""

from __future__ import annotations

import re
from functools import cache
from hashlib import sha1
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from symfonic_redis.errors import ConfigurationError

STORED = (0, 1, 2)
"""The states in which a write script reports that what was asked for is there: by this call, or by one before."""

_INCLUDE = re.compile(r"^--@include (\w+)$", re.MULTILINE)
_COMMAND = re.compile(r"redis\.p?call\('(\w+)'")


class Script(NamedTuple):
    """A script as the server knows it.

    Attributes:
        name: the file's name without `.lua`.
        text: the whole text, includes resolved.
        sha: the SHA-1 of the text in hex, by which EVALSHA names it.
        once: it takes an operation id: a write of memory.
    """

    name: str
    text: str
    sha: str
    once: bool


@cache
def sources() -> dict[str, str]:
    """The text of each file in `lua/` by its name without the suffix, as written.

    Raises:
        ConfigurationError: the folder is missing, which a broken installation means.
    """
    for folder in (files("symfonic_redis") / "lua", Path(__file__).resolve().parent.parent / "lua"):
        if folder.is_dir():
            found = {item.name[:-4]: item.read_text("utf-8") for item in folder.iterdir() if item.name.endswith(".lua")}
            if found:
                return found
    raise ConfigurationError("the Lua scripts are missing from the installation: install symfonic-redis again")


@cache
def script(name: str) -> Script:
    """The script of that name, ready to send: with what it includes, and the list of the commands that it runs."""
    texts = sources()
    text = _INCLUDE.sub(lambda match: texts[match[1]].rstrip("\n"), texts[name])
    commands = ", ".join(f"'{command}'" for command in sorted(set(_COMMAND.findall(text))))
    text = text.replace("--@commands", f"local commands = {{{commands}}}")
    return Script(
        name, text, sha1(text.encode(), usedforsecurity=False).hexdigest(), "once" in _INCLUDE.findall(texts[name])
    )
