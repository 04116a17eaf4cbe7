"""A range of a topic cut into parts that can be read beside each other. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from geminga.limits import MIB
from geminga.pipeline.client.topics import Ledger
from geminga.pipeline.columns.message_id import MessageId
from geminga.pipeline.topics.reading import Range
from geminga.pipeline.triggers.windows import Window

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
    window = Window.between(wanted.start, wanted.end, ledgers)
    total = window.entries
    if total == 0:
        return [wanted]
    count = splits or _worth(total, window.size_bytes)
    count = max(1, min(count, total))
    borders = [MessageId(*window.entry(total * number // count), 0) for number in range(1, count)]
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
