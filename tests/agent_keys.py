"""The keyring of an agent, for the command line to import."""

from __future__ import annotations

from symfonic_redis import Keyring

CLI_KEY = b"c" * 32


def ring() -> Keyring:
    return Keyring({"cli": CLI_KEY}, current="cli")
