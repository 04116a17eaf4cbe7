"""The topic of each ledger, for log lines and commands."""

from __future__ import annotations

from geminga.errors import StorageError
from geminga.metadata import records
from geminga.metadata.store import MetadataStore


def topic_of_ledger(metadata: MetadataStore, ledger_id: int) -> str:
    """The topic's name for users, with the purpose of a ledger that does not store messages; "" if the
    metadata does not have it or cannot be read.
    """
    path = records.ledger_path(ledger_id)
    try:
        stored = metadata.get(path)
        record = records.decode(records.LedgerRecord, stored.value, path) if stored is not None else None
    # Only text for a log line depends on it; a warning about damage must not fail over its wording.
    except StorageError:
        return ""
    if record is None:
        return ""
    purpose = "" if record.purpose == "data" else f", {record.purpose}"
    return topic_text(record.topic) + purpose


def topic_text(path: str) -> str:
    """The name, for users, of the topic with this path."""
    return str(records.topic_of(path)) if path.startswith(f"{records.MANAGED_LEDGERS}/") else path
