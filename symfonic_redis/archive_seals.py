"""Archives are plain, whatever the deployment: what is exported is opened first, what is imported is sealed again."""

from __future__ import annotations

from collections.abc import Mapping

from symfonic_redis.archive_lines import Entry, Row
from symfonic_redis.entry_seals import seal_changes, seal_fields, unseal_changes, unseal_fields
from symfonic_redis.errors import CodecError, KeyringMismatch
from symfonic_redis.rows import TURN
from symfonic_redis.sealing import Seal


def unseal_row(row: bytes, seal: Seal) -> bytes:
    """A turn's row in plain. What is damaged stays as it is stored.

    Raises:
        KeyringMismatch: it needs a key that is not here, or is plain where plain rows are not accepted.
    """
    try:
        return seal.unseal(row, *TURN)
    except KeyringMismatch:
        raise
    except CodecError:
        return row


def unseal_entry(
    layer: str, at: str, fields: dict[bytes, bytes], edits: Mapping[str, bytes | None], seal: Seal
) -> Entry:
    """A node in plain, without changes whose value is gone. What is damaged stays as it is stored.

    Raises:
        KeyringMismatch: as `unseal_row`.
    """
    there = {name: value for name, value in edits.items() if value is not None}
    try:
        return Entry(layer, at, unseal_fields(fields, layer, seal), unseal_changes(there, layer, at, seal))
    except KeyringMismatch:
        raise
    except CodecError:
        return Entry(layer, at, fields, there)


def seal_record(record: Row | Entry, seal: Seal) -> Row | Entry:
    """What an archive holds as it is stored. What did not open when it was exported is sealed like the rest."""
    if isinstance(record, Row):
        return Row(seal.seal(record.row, *TURN))
    layer, at, fields, edits = record
    return Entry(layer, at, seal_fields(fields, layer, seal), seal_changes(edits, layer, at, seal))
