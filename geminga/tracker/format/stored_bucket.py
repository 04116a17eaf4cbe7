"""A bucket of the delayed index that lies in a ledger, and the property that names it."""

from __future__ import annotations

from typing import Final

from geminga.managed_ledger.cursor.bucket_properties import DELAYED_PREFIX
from geminga.tracker.format.bucket_format import Directory

KEY_PREFIX: Final = DELAYED_PREFIX + "bucket_"


def bucket_key(start_ledger: int, end_ledger: int) -> str:
    """The property's name; Pulsar's, to the letter."""
    return f"{KEY_PREFIX}{start_ledger}_{end_ledger}"


def range_of_key(key: str) -> tuple[int, int] | None:
    """The ledgers of a bucket by its property's name; None if that is not one."""
    start, _, end = key.removeprefix(KEY_PREFIX).partition("_")
    if not key.startswith(KEY_PREFIX) or not start.isdecimal() or not end.isdecimal():
        return None
    found = int(start), int(end)
    return found if found[0] <= found[1] and key == bucket_key(*found) else None


def bucket_text(start_ledger: int, end_ledger: int, ledger_id: int) -> str:
    """A bucket in the log, whether it could be read or not."""
    return f"<bucket {start_ledger}..{end_ledger} in ledger {ledger_id}>"


class StoredBucket:
    """One bucket on the bookie. `directory` has no members here: the index has taken them over."""

    __slots__ = ("bytes", "directory", "key", "ledger_id", "retired")

    def __init__(self, ledger_id: int, directory: Directory, size_bytes: int) -> None:
        self.ledger_id = ledger_id
        self.directory = directory._replace(members={})
        self.bytes = size_bytes
        """Length of all its entries."""
        self.key = bucket_key(directory.start_ledger, directory.end_ledger)
        self.retired = False
        """Whether it is on its way out: released, merged away, lost or cleared."""

    @property
    def start_ledger(self) -> int:
        return self.directory.start_ledger

    @property
    def end_ledger(self) -> int:
        return self.directory.end_ledger

    def __repr__(self) -> str:
        return bucket_text(self.start_ledger, self.end_ledger, self.ledger_id)
