"""Which positions the delayed index holds: a roaring bitmap of entry ids for each ledger.

This is the truth, the rows with the times only follow it: a row whose bit is not set is dead and is skipped
when it is met. So cancelling, acknowledging, clearing and losing a bucket are operations on bitmaps, and the
number of delayed messages is the cardinality, counted as it changes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping
from itertools import islice

from pyroaring import BitMap

LEDGER_BYTES = 290
"""Measured: an empty bitmap with its object, its slot in the dictionary, its ledger id."""
SAMPLED_LEDGERS_MAX = 64


class Membership:
    """A set of positions. Only the ledger that is kept open may have an empty bitmap."""

    __slots__ = ("_open_ledger", "bitmaps", "count", "ledgers")

    def __init__(self) -> None:
        self.bitmaps: dict[int, BitMap] = {}
        self.ledgers: list[int] = []
        """The keys of `bitmaps`, ascending."""
        self.count = 0
        self._open_ledger = -1

    def keep_open(self, ledger_id: int) -> BitMap:
        """The bitmap of this ledger, which stays the same object until another one is kept open. Whoever adds
        to it directly adds to `count` too.
        """
        before, self._open_ledger = self._open_ledger, ledger_id
        if (left := self.bitmaps.get(before)) is not None and before != ledger_id:
            left.run_optimize()
            left.shrink_to_fit()
            if not left:
                self._close(before)
        return self._of(ledger_id)

    def _of(self, ledger_id: int) -> BitMap:
        bitmap = self.bitmaps.get(ledger_id)
        if bitmap is None:
            bitmap = self.bitmaps[ledger_id] = BitMap()
            insort(self.ledgers, ledger_id)
        return bitmap

    def contains(self, ledger_id: int, entry_id: int) -> bool:
        bitmap = self.bitmaps.get(ledger_id)
        return bitmap is not None and entry_id in bitmap

    def contained(self, ledger_id: int, first_entry: int, last_entry: int) -> int:
        """How many of the entries first to last, both included."""
        bitmap = self.bitmaps.get(ledger_id)
        return 0 if bitmap is None else bitmap.range_cardinality(first_entry, last_entry + 1)

    def add_all(self, bitmaps: Mapping[int, BitMap]) -> int:
        """Returns how many of them were not members before."""
        added = 0
        for ledger_id, entry_ids in bitmaps.items():
            if entry_ids:
                bitmap = self._of(ledger_id)
                before = len(bitmap)
                bitmap |= entry_ids
                added += len(bitmap) - before
        self.count += added
        return added

    def add(self, ledger_id: int, entry_id: int) -> None:
        """It must not be a member."""
        self._of(ledger_id).add_checked(entry_id)
        self.count += 1

    def discard(self, ledger_id: int, entry_id: int) -> bool:
        """Whether it was a member."""
        bitmap = self.bitmaps.get(ledger_id)
        if bitmap is None or entry_id not in bitmap:
            return False
        bitmap.discard(entry_id)
        self.count -= 1
        if not bitmap:
            self._close(ledger_id)
        return True

    def take(self, ledger_id: int, entry_ids: BitMap) -> None:
        """Remove these, which must all be members."""
        bitmap = self.bitmaps[ledger_id]
        bitmap -= entry_ids
        self.count -= len(entry_ids)
        if not bitmap:
            self._close(ledger_id)

    def discard_up_to(self, ledger_id: int, entry_id: int) -> int:
        """Remove all that stand at or before this position; how many that were."""
        removed = 0
        for before in self.ledgers[: bisect_left(self.ledgers, ledger_id)]:
            removed += len(self.bitmaps[before])
            self._close(before)
        if entry_id >= 0 and (bitmap := self.bitmaps.get(ledger_id)) is not None:
            in_last = bitmap.range_cardinality(0, entry_id + 1)
            if in_last:
                bitmap.remove_range(0, entry_id + 1)
                removed += in_last
            if not bitmap:
                self._close(ledger_id)
        self.count -= removed
        return removed

    def discard_ledgers(self, first_ledger: int, last_ledger: int) -> int:
        """Remove all of these ledgers, both included; how many that were."""
        removed = 0
        for ledger_id in self.ledgers_between(first_ledger, last_ledger):
            removed += len(self.bitmaps[ledger_id])
            self._close(ledger_id)
        self.count -= removed
        return removed

    def ledgers_between(self, first_ledger: int, last_ledger: int) -> list[int]:
        """Those from the first to the last, both included, that have members (or are open)."""
        ledgers = self.ledgers
        return ledgers[bisect_left(ledgers, first_ledger) : bisect_right(ledgers, last_ledger)]

    def count_between(self, first_ledger: int, last_ledger: int) -> int:
        return sum(
            len(self.bitmaps[ledger_id]) for ledger_id in self.ledgers_between(first_ledger, last_ledger)
        )

    def is_empty_up_to(self, ledger_id: int, entry_id: int) -> bool:
        """Whether nothing stands at or before this position. O(1) where that is so."""
        if not self.ledgers or self.ledgers[0] > ledger_id:
            return True
        bitmap = self.bitmaps[self.ledgers[0]]
        return bool(self.ledgers[0] == ledger_id and (not bitmap or bitmap.min() > entry_id))

    def positions_from(self, ledger_id: int, entry_id: int) -> Iterator[tuple[int, int]]:
        """All at or after this position, in the order of the topic. Nothing may change meanwhile."""
        for ledger in islice(self.ledgers, bisect_left(self.ledgers, ledger_id), None):
            first = entry_id if ledger == ledger_id else 0
            for entry in self.bitmaps[ledger].iter_equal_or_larger(max(first, 0)):
                yield ledger, entry

    def clear(self) -> None:
        """Also of the ledger that is kept open."""
        self.bitmaps.clear()
        self.ledgers.clear()
        self.count = 0

    def _close(self, ledger_id: int) -> None:
        if ledger_id == self._open_ledger:
            self.bitmaps[ledger_id].clear()
            return
        del self.bitmaps[ledger_id]
        del self.ledgers[bisect_left(self.ledgers, ledger_id)]

    def memory_bytes(self) -> int:
        """From the bitmaps themselves; of more than a few, from an even sample."""
        if not self.bitmaps:
            return 0
        stride = -(-len(self.bitmaps) // SAMPLED_LEDGERS_MAX)
        sampled = [bitmap_bytes(bitmap) for bitmap in islice(self.bitmaps.values(), 0, None, stride)]
        return sum(sampled) * len(self.bitmaps) // len(sampled)


def bitmap_bytes(bitmap: BitMap) -> int:
    found = bitmap.get_statistics()
    return LEDGER_BYTES + int(
        found["n_bytes_array_containers"]
        + found["n_bytes_run_containers"]
        + found["n_bytes_bitset_containers"]
    )
