"""Cuts ranges of topics into parts that can be read in parallel. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heapreplace
from itertools import pairwise

import numpy as np

from geminga.limits import MIB
from geminga.pipeline.client.shared_connection import EntryFacts
from geminga.pipeline.client.topics import Ledger
from geminga.pipeline.columns.message_id import MessageId
from geminga.pipeline.columns.protobuf_columns import Ints
from geminga.pipeline.topics.ranges import Range
from geminga.pipeline.topics.splitting import Splitting
from geminga.pipeline.triggers.samples import Piece, pieces
from geminga.pipeline.triggers.sampling import ENTRIES_PER_LOOK, LOOKS_MAX, LOOKS_OF_TOPIC_MAX
from geminga.pipeline.triggers.windows import Window

SPLIT_BYTES = 64 * MIB
SPLIT_ENTRIES_MIN = 64
"""The least number of entries of a split if sizes are unknown."""
SPLITS_MAX = 4
"""The limit of splits of one partition if sizes are unknown."""
_ALMOST = 1e-6


@dataclass
class _Block:
    """Entries of one range, by their numbers, that become `parts` parts of equal length."""

    first: int
    entries: int
    weight: float
    """In bytes or entries, the same for all blocks."""
    parts: int = 1

    def borders(self) -> list[int]:
        return [self.first + self.entries * number // self.parts for number in range(self.parts)]


def cut(
    found: Sequence[tuple[Range, Sequence[Ledger]]],
    splitting: Splitting,
    samples: Mapping[str, Sequence[EntryFacts]] | None = None,
) -> list[Range]:
    """Consecutive parts of each range, which together are the range; at least one of each.

    The ledgers of a range are in order and include all that have a part in it (otherwise it stays whole);
    those before its last one are closed. `samples`: of each topic some entries, in order; those of a topic
    that has none are taken for the average of all.
    """
    windows = [Window.between(wanted.start, wanted.end, ledgers) for wanted, ledgers in found]
    has_sizes = all(window.has_sizes for window in windows)
    typical = _typical(samples or {})
    blocks = []
    for (wanted, _), window in zip(found, windows, strict=True):
        starts = [0]
        if splitting.rows_max:
            entries = list((samples or {}).get(wanted.topic) or typical)
            starts = row_borders(pieces(window, entries), splitting.rows_max)
        each = window.size_bytes / window.entries if has_sizes and window.entries else 1.0
        own = [
            _Block(first, after - first, (after - first) * each)
            for first, after in pairwise([*starts, window.entries])
            if first < after
        ]
        _divide(own, splitting.of_each or _worth(window))
        blocks.append(own)
    wholes = sum(not own for own in blocks)
    _divide([block for own in blocks for block in own], splitting.of_all_min - wholes)
    return [
        part
        for (wanted, ledgers), window, own in zip(found, windows, blocks, strict=True)
        for part in _parts(wanted, ledgers, window, [border for block in own for border in block.borders()])
    ]


def splits_wanted(
    found: Sequence[tuple[Range, Sequence[Ledger]]],
    splitting: Splitting,
    samples: Mapping[str, Sequence[EntryFacts]] | None = None,
) -> int:
    """About how many parts `cut` would make because the options say so, without making them."""
    count = 0
    typical = _typical(samples or {})
    for wanted, ledgers in found:
        window = Window.between(wanted.start, wanted.end, ledgers)
        if splitting.rows_max:
            some = pieces(window, list((samples or {}).get(wanted.topic) or typical))
            count += _parts_of_rows(some, splitting.rows_max)
        else:
            count += min(splitting.of_each, window.entries)
    return count


def looks(found: Sequence[tuple[Range, Sequence[Ledger]]]) -> list[tuple[str, MessageId]]:
    """Of which entries `cut` gets samples. They depend on the ranges alone, so that the same ranges are cut
    in the same way. One entry in a hundred at most, and one of each of the largest ranges.
    """
    windows = {wanted.topic: Window.between(wanted.start, wanted.end, ledgers) for wanted, ledgers in found}
    entries = {topic: window.entries for topic, window in windows.items() if window.entries > 1}
    by_size = sorted(entries, key=lambda topic: (-entries[topic], topic))
    left = LOOKS_MAX
    asked = []
    for topic in by_size[:LOOKS_MAX]:
        more = max(min(entries[topic] // ENTRIES_PER_LOOK - 1, LOOKS_OF_TOPIC_MAX, left), 0)
        left -= more
        asked += [
            (topic, MessageId(*windows[topic].entry(entries[topic] * number // (more + 1)), 0))
            for number in range(more + 1)
        ]
    return asked


def row_borders(found: Sequence[Piece], rows_max: int) -> list[int]:
    """The numbers of the entries with which parts begin that have at most so many rows: as few parts as
    that takes, and of about equal rows. An entry that has more is a part of its own.
    """
    borders, at, rows = [0], 0, 0.0
    for piece in found:
        each, left = max(piece.rows, _ALMOST), piece.entries
        while left:
            count = min(left, int((rows_max - rows) / each + _ALMOST))
            if count < 1 and rows:
                borders.append(at)
                rows = 0.0
                continue
            count = max(count, 1)
            at, left, rows = at + count, left - count, rows + count * each
    return _evened(found, borders, rows_max)


def _parts_of_rows(found: Sequence[Piece], rows_max: int) -> int:
    """As many as `row_borders` finds, in a step for each piece."""
    parts, rows = 0, float(rows_max)
    for piece in found:
        each = max(piece.rows, _ALMOST)
        left = max(piece.entries - max(int((rows_max - rows) / each + _ALMOST), 0), 0)
        of_part = max(int(rows_max / each + _ALMOST), 1)
        more = -(-left // of_part)
        parts += more
        rows = (left - (more - 1) * of_part) * each if more else rows + piece.entries * each
    return parts


def _evened(found: Sequence[Piece], borders: list[int], rows_max: int) -> list[int]:
    """As many borders at equal distances in rows, if no part has too many rows then."""
    entries: Ints = np.cumsum([0, *(piece.entries for piece in found)])
    rows = np.cumsum([0.0, *(max(piece.rows, _ALMOST) * piece.entries for piece in found)])
    wanted = rows[-1] * np.arange(len(borders)) / len(borders)
    even = np.unique(np.floor(np.interp(wanted, rows, entries) + _ALMOST).astype(np.int64))
    ends = np.append(even, entries[-1])
    held = np.diff(np.interp(ends, entries, rows))
    fits = (held <= rows_max + _ALMOST) | (np.diff(ends) == 1)
    return even.tolist() if fits.all() else borders


def _divide(blocks: Sequence[_Block], parts_min: int) -> None:
    """Give one more part to the block with the largest parts, until there are so many together, or as many
    as entries.
    """
    missing = parts_min - sum(block.parts for block in blocks)
    largest = [
        (-block.weight / block.parts, index)
        for index, block in enumerate(blocks)
        if block.parts < block.entries
    ]
    heapify(largest)
    while missing > 0 and largest:
        index = largest[0][1]
        block = blocks[index]
        block.parts += 1
        missing -= 1
        if block.parts < block.entries:
            heapreplace(largest, (-block.weight / block.parts, index))
        else:
            heappop(largest)


def _parts(wanted: Range, ledgers: Sequence[Ledger], window: Window, firsts: Sequence[int]) -> list[Range]:
    if window.entries == 0:
        return [wanted]
    closed = [each for each in ledgers if each.entries > 0 and each.ledger_id < wanted.end.ledger_id]
    ids = [each.ledger_id for each in closed]
    borders = [MessageId(*entry, 0) for entry in window.entries_at(firsts[1:])]
    starts = [wanted.start, *borders]
    ends = [*borders, wanted.end]
    return [
        replace(wanted, start=start, end=end, strict=wanted.strict or index > 0,
                check_previous=wanted.check_previous and index == 0,
                next_ledger=wanted.next_ledger if index == 0 else None,
                closed=tuple(closed[bisect_left(ids, start.ledger_id):bisect_right(ids, end.ledger_id)]))
        for index, (start, end) in enumerate(zip(starts, ends, strict=True))
        if start < end
    ]  # fmt: skip


def _worth(window: Window) -> int:
    if window.size_bytes:
        return max(1, round(window.size_bytes / SPLIT_BYTES))
    return max(1, min(SPLITS_MAX, window.entries // SPLIT_ENTRIES_MIN))


def _typical(samples: Mapping[str, Sequence[EntryFacts]]) -> list[EntryFacts]:
    """An entry like those that were looked at, on average."""
    rows = [facts.rows for some in samples.values() for facts in some]
    return [EntryFacts(0, 0, sum(rows) / len(rows) if rows else 1.0, 0, 0)]
