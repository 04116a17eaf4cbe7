"""A range of a topic cut into parts that can be read beside each other. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from geminga.limits import MIB
from geminga.pipeline.client.topics import Ledger
from geminga.pipeline.columns.places import Place
from geminga.pipeline.topics.reading import Range

SPLIT_BYTES = 64 * MIB
SPLIT_ENTRIES_MIN = 64
"""What a split has at least where sizes are not known."""
SPLITS_MAX = 4
"""Of one partition where sizes are not known."""


def cut(wanted: Range, ledgers: Sequence[Ledger], *, splits: int = 0) -> list[Range]:
    """Parts of `wanted` that together are `wanted`, in order, about equally large; never none.

    `ledgers` in order, and all that have a part in the range (else it stays whole). `splits` 0: as many as
    pay off.
    """
    parts = _entries_of(wanted, ledgers)
    total = sum(last - first for _, first, last, _ in parts)
    if total == 0:
        return [wanted]
    count = splits or _worth(total, sum((last - first) * each for _, first, last, each in parts))
    count = max(1, min(count, total))
    borders: list[Place] = []
    for number in range(1, count):
        left = total * number // count
        for ledger_id, first, last, _ in parts:
            if left < last - first:
                borders.append(Place(ledger_id, first + left, 0))
                break
            left -= last - first
    starts = [wanted.start, *borders]
    ends = [*borders, wanted.end]
    return [
        replace(wanted, start=start, end=end, strict=wanted.strict or index > 0,
                check_previous=wanted.check_previous and index == 0)
        for index, (start, end) in enumerate(zip(starts, ends, strict=True))
        if start < end
    ]  # fmt: skip


def _worth(entries: int, size_bytes: float) -> int:
    if size_bytes:
        return max(1, round(size_bytes / SPLIT_BYTES))
    return max(1, min(SPLITS_MAX, entries // SPLIT_ENTRIES_MIN))


def _entries_of(wanted: Range, ledgers: Sequence[Ledger]) -> list[tuple[int, int, int, float]]:
    """(ledger, first entry, entry after the last, bytes of an entry) of each ledger's part in the range."""
    found = []
    start, end = wanted.start, wanted.end
    for ledger in ledgers:
        first = start.entry_id if ledger.ledger_id == start.ledger_id else 0
        last = ledger.entries
        if ledger.ledger_id == end.ledger_id:
            last = min(last, end.entry_id + (1 if end.batch_index else 0)) if last >= 0 else end.entry_id
        if start.ledger_id <= ledger.ledger_id <= end.ledger_id and max(first, 0) < last:
            found.append((ledger.ledger_id, max(first, 0), last, ledger.size_bytes / max(ledger.entries, 1)))
    return found
