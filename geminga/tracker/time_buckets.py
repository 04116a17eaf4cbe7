"""Delayed positions in memory: time bucket -> ledger -> roaring bitmap of entry ids.

Times are truncated to buckets of 2^floor(log2(tick)) ms, so that one bitmap holds all entries of a ledger
that are due at about the same time: two bytes or less for each message where a heap of triples takes 24. This
is the "TimeBucket" structure that Pulsar's in-memory tracker uses since 4.2 (pull request 23611).

Not strict: times round down and a wake-up is at the bucket's start, so a message is up to one tick early,
never late. Strict: times round up, so a message is never early and up to one bucket late.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import islice, repeat
from typing import Any

from pyroaring import BitMap

from geminga.clock import Clock
from geminga.position import Position

TICK_MS = 1000
FIXED_DELAY_LOOKAHEAD = 50_000
RUN_ENTRIES_MIN = 64
"""A bitmap that got at least this many adds in a row is worth compressing once another one takes over."""

BITMAP_BYTES = 270
"""Measured: an empty bitmap with its object, its first container's header and its slot in a dictionary."""
BUCKET_BYTES = 330
"""Measured: a dictionary for a bucket's ledgers, its slot and its key."""
SAMPLED_BUCKETS_MAX = 64
SAMPLED_LEDGERS_MAX = 16

_position = partial(tuple.__new__, Position)


def bucket_bits(tick_ms: int) -> int:
    """How many low bits of a time are dropped for this tick: floor(log2(tick)), 9 for 1000 ms."""
    return max(tick_ms, 1).bit_length() - 1


class TimeBucketTracker:
    """The in-memory tracker. A position must come with the same delivery time each time that it is added.

    `tick_ms` is how early a message may be when not `strict`, and how coarse the buckets are in both cases. A
    new tick applies to the choice of what is due at once; the width of the buckets follows when the tracker
    is next empty.
    """

    __slots__ = (
        "_all_later",
        "_bits",
        "_buckets",
        "_count",
        "_due_after_key_ms",
        "_highest_ms",
        "_keys",
        "_last_bitmap",
        "_last_key",
        "_last_ledger_id",
        "_lookahead",
        "_mask",
        "_now_ms",
        "_round_up_ms",
        "_run_start_count",
        "_slack_ms",
        "_strict",
        "_tick_ms",
    )

    def __init__(
        self,
        clock: Clock,
        tick_ms: int = TICK_MS,
        strict: bool = False,
        fixed_delay_lookahead: int = FIXED_DELAY_LOOKAHEAD,
    ) -> None:
        assert tick_ms >= 0
        self._now_ms = clock.now_ms
        self._strict = strict
        self._lookahead = fixed_delay_lookahead
        self._tick_ms = tick_ms
        self._reset()

    def _reset(self) -> None:
        """Back to empty, with the bucket width that the present tick asks for."""
        self._buckets: dict[int, dict[int, Any]] = {}
        self._keys: list[int] = []  # a heap with the keys of _buckets, each once
        self._count = 0
        # One fixed delay for all: times only rise, and nothing undelayed comes between (see should_pause).
        self._all_later = True
        self._highest_ms = 0
        self._bits = bucket_bits(self._tick_ms)
        width_ms = 1 << self._bits
        self._mask = -width_ms
        self._round_up_ms = width_ms - 1 if self._strict else 0
        self._apply_tick()
        self._forget_last()

    def _apply_tick(self) -> None:
        last_ms = (1 << self._bits) - 1
        # Not strict: a bucket is due once even its last millisecond is within the tick. If the tick has
        # become shorter than the buckets are wide, messages are early by the width instead: what is taken
        # must not be accepted again by add, and waiting past the bucket's start would make them late.
        self._slack_ms = 0 if self._strict else max(self._tick_ms, last_ms)
        self._due_after_key_ms = last_ms - self._slack_ms if not self._strict else 0

    def _forget_last(self) -> None:
        self._last_key = -1
        self._last_ledger_id = -1
        self._last_bitmap: Any = None
        self._run_start_count = self._count

    def add(self, position: Position, deliver_at_ms: int) -> bool:
        if deliver_at_ms <= self._now_ms() + self._slack_ms:
            self._all_later = False
            if deliver_at_ms >= 0 and self._count:
                self._discard(position, deliver_at_ms)
            return False
        if deliver_at_ms > self._highest_ms:
            self._highest_ms = deliver_at_ms
        elif deliver_at_ms < self._highest_ms - self._tick_ms:
            self._all_later = False
        key = (deliver_at_ms + self._round_up_ms) & self._mask
        ledger_id, entry_id = position
        if key == self._last_key and ledger_id == self._last_ledger_id:
            bitmap = self._last_bitmap
        else:
            bitmap = self._bitmap_of(key, ledger_id)
        try:
            bitmap.add_checked(entry_id)
        except KeyError:  # it is there already
            return True
        self._count += 1
        return True

    def add_many(
        self, ledger_id: int, entry_ids: Sequence[int], deliver_at_ms: Sequence[int]
    ) -> Sequence[int]:
        add = self.add
        places = enumerate(zip(entry_ids, deliver_at_ms, strict=True))
        return [n for n, (entry_id, at_ms) in places if not add(Position(ledger_id, entry_id), at_ms)]

    def _bitmap_of(self, key: int, ledger_id: int) -> Any:
        """The bitmap of (bucket, ledger), which the next add probably wants too."""
        if self._count - self._run_start_count >= RUN_ENTRIES_MIN:
            self._last_bitmap.run_optimize()
            self._last_bitmap.shrink_to_fit()
        ledgers = self._buckets.get(key)
        if ledgers is None:
            ledgers = self._buckets[key] = {}
            heappush(self._keys, key)
        bitmap = ledgers.get(ledger_id)
        if bitmap is None:
            bitmap = ledgers[ledger_id] = BitMap()
        self._last_key = key
        self._last_ledger_id = ledger_id
        self._last_bitmap = bitmap
        self._run_start_count = self._count
        return bitmap

    def _discard(self, position: Position, deliver_at_ms: int) -> None:
        """Forget a position that the dispatcher is about to send, lest `take_due` returns it once more."""
        key = (deliver_at_ms + self._round_up_ms) & self._mask
        ledgers = self._buckets.get(key)
        bitmap = None if ledgers is None else ledgers.get(position.ledger_id)
        if ledgers is None or bitmap is None or position.entry_id not in bitmap:
            return
        bitmap.discard(position.entry_id)
        self._count -= 1
        self._forget_last()
        if not bitmap:
            del ledgers[position.ledger_id]
        if not ledgers:
            del self._buckets[key]
            self._keys.remove(key)
            heapify(self._keys)

    def has_due(self) -> bool:
        return bool(self._keys) and self._keys[0] + self._due_after_key_ms <= self._now_ms()

    def take_due(self, count_max: int) -> list[Position]:
        taken: list[Position] = []
        due_key_max = self._now_ms() - self._due_after_key_ms
        keys = self._keys
        self._forget_last()  # its bitmap may be one of those that are emptied here
        while keys and keys[0] <= due_key_max and len(taken) < count_max:
            ledgers = self._buckets[keys[0]]
            for ledger_id in sorted(ledgers):
                room = count_max - len(taken)
                if room <= 0:
                    break
                bitmap = ledgers[ledger_id]
                if len(bitmap) <= room:
                    del ledgers[ledger_id]
                    taken.extend(map(_position, zip(repeat(ledger_id), bitmap)))
                else:
                    head = bitmap[:room]
                    bitmap -= head  # in place
                    taken.extend(map(_position, zip(repeat(ledger_id), head)))
            if not ledgers:
                del self._buckets[heappop(keys)]
        self._count -= len(taken)
        assert self._count >= 0
        assert (self._count == 0) == (not keys), f"{self._count} positions in {len(keys)} buckets"
        self._run_start_count = self._count
        if not keys and taken:
            self._reset()
        return taken

    def next_due_ms(self) -> int | None:
        """The start of the earliest bucket, although a bucket may be taken up to a tick before when not
        strict.

        That is as close to the message's own time as a wake-up can be without being late. A dispatcher that
        happens to ask earlier gets it earlier.
        """
        return self._keys[0] if self._keys else None

    def should_pause(self) -> bool:
        """Pulsar's fixed-delay detection: each add so far was accepted and later than those before, within a
        tick.

        Its price is Pulsar's too: undelayed messages behind `fixed_delay_lookahead` delayed ones are not seen
        until some of those are due. 0 turns it off.
        """
        return self._all_later and 0 < self._lookahead <= self._count and not self.has_due()

    def set_tick(self, tick_ms: int) -> None:
        if tick_ms == self._tick_ms:
            return
        assert tick_ms >= 0
        self._tick_ms = tick_ms
        if self._count == 0:
            self._reset()
        else:
            self._apply_tick()

    def contains(self, position: tuple[int, int]) -> bool:
        """Looks into each bucket: for tests and inspection, not for the path of an entry."""
        ledger_id, entry_id = position
        return any(entry_id in ledgers.get(ledger_id, ()) for ledgers in self._buckets.values())

    def contained(self, ledger_id: int, first_entry: int, last_entry: int) -> int:
        return 0

    def tracked(self, ledger_id: int, first_entry: int, last_entry: int) -> BitMap | None:
        found = BitMap()
        for ledgers in self._buckets.values():
            if (bitmap := ledgers.get(ledger_id)) is not None:
                found |= bitmap
        found &= BitMap(range(first_entry, last_entry + 1))
        return found or None

    def pass_positions(self, positions: Sequence[tuple[int, int]]) -> None:
        for ledger_id, entry_id in positions:
            for key, ledgers in self._buckets.items():
                if entry_id in ledgers.get(ledger_id, ()):
                    self._discard(Position(ledger_id, entry_id), key)
                    break

    def mark_delete_moved(self, position: tuple[int, int]) -> None:
        gone = [
            (ledger_id, entry_id)
            for ledgers in self._buckets.values()
            for ledger_id, bitmap in ledgers.items()
            for entry_id in bitmap
            if (ledger_id, entry_id) <= position
        ]
        self.pass_positions(gone)

    def __len__(self) -> int:
        return self._count

    def memory_bytes(self) -> int:
        """Exact up to the constants of the allocator for a few buckets; above that, scaled from an even
        sample.
        """
        buckets = len(self._buckets)
        if buckets == 0:
            return 0
        stride = -(-buckets // SAMPLED_BUCKETS_MAX)
        sampled_bytes = sampled = 0
        for ledgers in islice(self._buckets.values(), 0, None, stride):
            bitmaps = [len(bitmap.serialize()) for bitmap in islice(ledgers.values(), SAMPLED_LEDGERS_MAX)]
            sampled_bytes += BUCKET_BYTES + (BITMAP_BYTES + sum(bitmaps) // len(bitmaps)) * len(ledgers)
            sampled += 1
        return sampled_bytes * buckets // sampled

    async def clear(self) -> None:
        self._reset()

    async def close(self) -> None:
        self._reset()
