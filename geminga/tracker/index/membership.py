"""Which positions the delayed index holds: a roaring bitmap of entry ids for each ledger.

This is the truth, the rows with the times only follow it: a row whose bit is not set is dead and is skipped
when it is met. So cancelling, acknowledging, clearing and losing a bucket are operations on bitmaps, and the
number of delayed messages is the cardinality, counted as it changes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from pyroaring import BitMap

from geminga.tracker.format.rows import position_of

# pyroaring's own statistics count containers only.
LEDGER_BYTES = 290
"""Measured: an empty bitmap with its object, its slot in the dictionary, its ledger id."""
SAMPLED_LEDGERS_MAX = 64


class Membership:
    """A set of positions. Only the ledger that is kept open may have an empty bitmap.

    Entries that follow each other in the open ledger are a *run* first, `run_first` to `run_end` - 1: two
    numbers, so that adding the next one is one addition. A look at the bitmaps puts it in there.
    """

    __slots__ = (
        "_bitmaps",
        "_count",
        "_open_bitmap",
        "_open_ledger",
        "_top",
        "closed",
        "ledgers",
        "run_end",
        "run_first",
    )

    def __init__(self) -> None:
        self._bitmaps: dict[int, BitMap] = {}
        self.ledgers: list[int] = []
        """The keys of `bitmaps`, ascending."""
        self.closed = 0
        """How often the last member of a ledger has gone."""
        self._count = 0
        self._open_ledger = -1
        self._open_bitmap = BitMap()
        # An entry at or above it is new for sure: the usual add asks no bitmap.
        self._top = 0
        """No member of the open ledger is at or above this."""
        self.run_first = self.run_end = -1

    @property
    def bitmaps(self) -> dict[int, BitMap]:
        # The run comes in with the first look: until then an add is one addition, which made single adds a
        # quarter faster.
        if self.run_end > self.run_first:
            self._put_run()
        return self._bitmaps

    @property
    def count(self) -> int:
        return self._count + self.run_end - self.run_first

    def _put_run(self) -> None:
        self._open_bitmap.add_range(self.run_first, self.run_end)
        # Counted as it changes: Pulsar took back a tracker that counted all bitmaps with each add (pull
        # 24429).
        self._count += self.run_end - self.run_first
        self._top = self.run_first = self.run_end

    def keep_open(self, ledger_id: int) -> None:
        """From now on runs are added to this ledger."""
        self.stop_run()
        before, self._open_ledger = self._open_ledger, ledger_id
        if (left := self._bitmaps.get(before)) is not None and before != ledger_id:
            # When it is left and not before: the open one changes with each add, and would be converted back
            # and forth.
            left.run_optimize()
            left.shrink_to_fit()
            # Only the open ledger may have an empty bitmap, so that nothing else has to look for those.
            if not left:
                self._close(before)
        self._open_bitmap = self._of(ledger_id)
        self._top = self._open_bitmap.max() + 1 if self._open_bitmap else 0

    def stop_run(self) -> None:
        """The next entry begins a new run."""
        if self.run_end > self.run_first:
            self._put_run()
        self.run_first = self.run_end = -1

    def extend_run(self) -> None:
        """Add the entry `run_end` of the open ledger, which is the next one of the run."""
        self.run_end += 1

    def begin_run(self, entry_id: int) -> bool:
        """Add an entry of the open ledger that does not continue the run. False: it was a member."""
        self.stop_run()
        if entry_id >= self._top:
            self.run_first = entry_id
            self.run_end = entry_id + 1
            return True
        # Once in a bitmap, counted once, whichever view adds it again: Pulsar's tracker in memory counts a
        # position twice.
        if entry_id in self._open_bitmap:
            return False
        self._open_bitmap.add(entry_id)
        self._count += 1
        return True

    def add_entries(self, entry_ids: Sequence[int]) -> bool:
        """Add ascending entries of the open ledger. False: nothing was done, some of them may be members."""
        first, last = entry_ids[0], entry_ids[-1]
        if first == self.run_end and last - first == len(entry_ids) - 1:
            self.run_end = last + 1
            return True
        self.stop_run()
        # Some of the batch may be members: told by one question for all, and looked at one by one only then.
        if first < self._top and self._open_bitmap.range_cardinality(first, last + 1):
            return False
        # A batch without gaps becomes the run: two numbers, whatever its length.
        if last - first == len(entry_ids) - 1 and first >= self._top:
            self.run_first, self.run_end = first, last + 1
        else:
            self._open_bitmap.update(entry_ids)
            self._count += len(entry_ids)
            self._top = max(self._top, last + 1)
        return True

    def _of(self, ledger_id: int) -> BitMap:
        bitmap = self._bitmaps.get(ledger_id)
        if bitmap is None:
            bitmap = self._bitmaps[ledger_id] = BitMap()
            # Kept in order, as trimming and ranges need it; ledgers come in ascending order, so this is
            # nearly an append.
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
        self.stop_run()
        added = 0
        for ledger_id, entry_ids in bitmaps.items():
            if entry_ids:
                bitmap = self._of(ledger_id)
                before = len(bitmap)
                # In place: others hold this very bitmap, as the open one.
                bitmap |= entry_ids
                added += len(bitmap) - before
        self._count += added
        # The bits may have come to the open ledger as well.
        if self._open_bitmap:
            self._top = max(self._top, self._open_bitmap.max() + 1)
        return added

    def add(self, ledger_id: int, entry_id: int) -> None:
        """It must not be a member. Not for the open ledger."""
        # `_top` would stay below it, and a later add of the same entry take it for new.
        assert ledger_id != self._open_ledger
        self._of(ledger_id).add_checked(entry_id)
        self._count += 1

    def discard(self, ledger_id: int, entry_id: int) -> bool:
        """Whether it was a member."""
        bitmap = self.bitmaps.get(ledger_id)
        if bitmap is None or entry_id not in bitmap:
            return False
        bitmap.discard(entry_id)
        self._count -= 1
        # A ledger without members goes at once: `ledgers` is what a trim and a page go along.
        if not bitmap:
            self._close(ledger_id)
        return True

    def take(self, ledger_id: int, entry_ids: BitMap) -> None:
        """Remove these, which must all be members."""
        bitmap = self.bitmaps[ledger_id]
        bitmap -= entry_ids
        self._count -= len(entry_ids)
        if not bitmap:
            self._close(ledger_id)

    def discard_up_to(self, ledger_id: int, entry_id: int) -> int:
        """Remove all that stand at or before this position; how many that were."""
        removed = 0
        # Whole ledgers are dropped without a look at their bits: a skip over a backlog of millions is one
        # step for each.
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
        self._count -= removed
        return removed

    def discard_range(self, first_code: int, last_code: int) -> int:
        """Remove all of these positions, both included; how many that were."""
        removed = 0
        for ledger_id, start, stop in self._parts_between(first_code, last_code):
            bitmap = self.bitmaps[ledger_id]
            if found := bitmap.range_cardinality(start, stop):
                bitmap.remove_range(start, stop)
                removed += found
                if not bitmap:
                    self._close(ledger_id)
        self._count -= removed
        return removed

    def between(self, first_code: int, last_code: int) -> dict[int, BitMap]:
        """Copies of what is in there of these positions, both included, by ledger; none is empty."""
        found = {}
        for ledger_id, start, stop in self._parts_between(first_code, last_code):
            bitmap = BitMap(self.bitmaps[ledger_id])
            bitmap.remove_range(0, start)
            # Entry ids have 32 bits, as in Pulsar's segments.
            bitmap.remove_range(stop, 1 << 32)
            if bitmap:
                found[ledger_id] = bitmap
        return found

    def _parts_between(self, first_code: int, last_code: int) -> list[tuple[int, int, int]]:
        """Ledgers with the entries of each, the first and one past the last."""
        (first_ledger, first_entry), (last_ledger, last_entry) = (
            position_of(first_code),
            position_of(last_code),
        )
        return [
            (
                ledger_id,
                first_entry if ledger_id == first_ledger else 0,
                last_entry + 1 if ledger_id == last_ledger else 1 << 32,
            )
            for ledger_id in self.ledgers_between(first_ledger, last_ledger)
        ]

    def ledgers_between(self, first_ledger: int, last_ledger: int) -> list[int]:
        """Those from the first to the last, both included, that have members (or are open)."""
        ledgers = self.ledgers
        return ledgers[bisect_left(ledgers, first_ledger) : bisect_right(ledgers, last_ledger)]

    def count_between(self, first_code: int, last_code: int) -> int:
        bitmaps = self.bitmaps
        return sum(
            bitmaps[ledger_id].range_cardinality(start, stop)
            for ledger_id, start, stop in self._parts_between(first_code, last_code)
        )

    def is_empty_up_to(self, ledger_id: int, entry_id: int) -> bool:
        """Whether nothing stands at or before this position. O(1) where that is so."""
        # Asked whenever mark-delete moves on: nearly always the first ledger answers.
        if not self.ledgers or self.ledgers[0] > ledger_id:
            return True
        if not self.count:
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
        """Also of the ledger that is kept open: none is, after this."""
        self.stop_run()
        self._open_ledger = -1
        self._open_bitmap = BitMap()
        self._top = 0
        self._bitmaps.clear()
        self.ledgers.clear()
        self._count = 0
        # Also here: what compares this number has to look again.
        self.closed += 1

    def _close(self, ledger_id: int) -> None:
        self.closed += 1
        if ledger_id == self._open_ledger:
            # Cleared in place and kept: the next add goes to the same ledger.
            self._open_bitmap.clear()
            return
        del self._bitmaps[ledger_id]
        del self.ledgers[bisect_left(self.ledgers, ledger_id)]

    def memory_bytes(self) -> int:
        """From the bitmaps themselves; of more than a few, from an even sample."""
        bitmaps = self.bitmaps
        if not bitmaps:
            return 0
        # A sample, as statistics are asked for with each scrape and there may be thousands of ledgers.
        stride = -(-len(bitmaps) // SAMPLED_LEDGERS_MAX)
        sampled = [bitmap_bytes(bitmap) for bitmap in islice(bitmaps.values(), 0, None, stride)]
        return sum(sampled) * len(bitmaps) // len(sampled)


def bitmap_bytes(bitmap: BitMap) -> int:
    found = bitmap.get_statistics()
    return LEDGER_BYTES + int(
        found["n_bytes_array_containers"]
        + found["n_bytes_run_containers"]
        + found["n_bytes_bitset_containers"]
    )
