"""What a ledger is for, as the bookie's own files say it: for those who read them without the metadata."""

from __future__ import annotations

from typing import NamedTuple


class LedgerName(NamedTuple):
    """`purpose` is that of the ledger's metadata record ("data", "cursor", "bucket"), "" where it is not
    known; `topic` is the path of the topic's metadata node.
    """

    purpose: str
    topic: str


def more_telling(one: LedgerName | None, other: LedgerName) -> LedgerName:
    """Of two names of the same ledger the one that says more; the first if both say as much."""
    if one is None or (bool(other.topic), bool(other.purpose)) > (bool(one.topic), bool(one.purpose)):
        return other
    return one
