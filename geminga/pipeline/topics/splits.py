"""Cuts a range of a topic into parts that can be read in parallel. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from geminga.limits import MIB
from geminga.pipeline.client.topics import Ledger
from geminga.pipeline.columns.message_id import MessageId
from geminga.pipeline.topics.ranges import Range
from geminga.pipeline.triggers.windows import Window

SPLIT_BYTES = 64 * MIB
SPLIT_ENTRIES_MIN = 64
"""The least number of entries of a split if sizes are unknown."""
SPLITS_MAX = 4
"""The limit of splits of one partition if sizes are unknown."""


def cut(wanted: Range, ledgers: Sequence[Ledger], *, splits: int = 0) -> list[Range]:
    """Consecutive parts of `wanted`, about equally large, which together are `wanted`; at least one.

    `ledgers` are in order and include all that have a part in the range (otherwise the range stays whole);
    those before the last one of the range are closed.
    `splits` 0: as many as are worth it.
    """
    window = Window.between(wanted.start, wanted.end, ledgers)
    total = window.entries
    if total == 0:
        return [wanted]
    closed = [each for each in ledgers if each.entries > 0 and each.ledger_id < wanted.end.ledger_id]
    count = splits or _worth(total, window.size_bytes)
    count = max(1, min(count, total))
    borders = [MessageId(*window.entry(total * number // count), 0) for number in range(1, count)]
    starts = [wanted.start, *borders]
    ends = [*borders, wanted.end]
    return [
        replace(wanted, start=start, end=end, strict=wanted.strict or index > 0,
                check_previous=wanted.check_previous and index == 0,
                next_ledger=wanted.next_ledger if index == 0 else None,
                closed=tuple(each for each in closed if start.ledger_id <= each.ledger_id <= end.ledger_id))
        for index, (start, end) in enumerate(zip(starts, ends, strict=True))
        if start < end
    ]  # fmt: skip


def _worth(entries: int, size_bytes: float) -> int:
    if size_bytes:
        return max(1, round(size_bytes / SPLIT_BYTES))
    return max(1, min(SPLITS_MAX, entries // SPLIT_ENTRIES_MIN))
