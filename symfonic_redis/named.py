"""What the command line is given by its import path, as `module:factory`: a function of the user's own."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from symfonic_redis.errors import ConfigurationError
from symfonic_redis.sealing import Keyring

KEYRING = "SYMFONIC_REDIS_KEYRING"
"""The environment's name for the factory of the keyring."""


def factory(name: str, what: str) -> Callable[[], Any]:
    """The function behind an import path; `what` it makes, for the message.

    Raises:
        ConfigurationError: it cannot be imported, or is no function.
    """
    module, _, attribute = name.partition(":")
    # As for `python -m`: the user's own module lies where the command is run.
    if os.getcwd() not in sys.path:  # noqa: PTH109 - sys.path holds strings
        sys.path.insert(0, os.getcwd())  # noqa: PTH109 - the same
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(
            f"the {what} {name} cannot be imported ({type(error).__name__}): write it as module:factory"
        ) from error
    if not callable(found):
        raise ConfigurationError(f"the {what} {name} is no function: name one that returns the {what}")
    return found  # type: ignore[no-any-return]  # the user's own


def keyring() -> Keyring | None:
    """The keyring that the environment names; None when it names none.

    Raises:
        ConfigurationError: it cannot be made. What is no keyring, `connect` refuses.
    """
    name = os.environ.get(KEYRING)
    ring: Keyring | None = factory(name, "keyring")() if name else None
    return ring
