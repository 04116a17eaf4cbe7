"""Which consumer of a Key_Shared subscription gets which key, and which keys must wait for an earlier
consumer.

Pure: no clock, no I/O, no randomness. A key's murmur hash is folded into a *slot* (1..65535; 0 means "none"),
and a selector maps slots to consumers. The slots, ring points and range rules are Pulsar's (PIP-34, PIP-119,
PIP-282, PIP-379), so that a topic's keys go to the consumers that they would go to there.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from geminga.errors import ConsumerAssign
from geminga.wire.message_metadata import sticky_hash

# Pulsar's DEFAULT_RANGE_SIZE (2 << 15).
SLOTS = 65_536
# Pulsar has no bound. All ranges of a consumer that comes are sorted and looked up, on the loop.
RANGES_MAX = 1_000
"""Ranges that one consumer may name."""
RING_POINTS = 100
"""Points on the hash ring for each consumer (`subscriptionKeySharedConsistentHashingReplicaPoints`)."""


class SlotRange(NamedTuple):
    """Slots `start` to `end`, both included."""

    start: int
    end: int


class KeyedConsumer(Protocol):
    """What a selector has to know of a consumer. Consumers are told apart by identity."""

    @property
    def name(self) -> str: ...
    @property
    def key_ranges(self) -> Sequence[SlotRange]: ...


C = TypeVar("C", bound=KeyedConsumer)


class Selector(Protocol[C]):
    """Slot -> consumer; changes only when a consumer comes or goes."""

    def slot(self, key_hash: int) -> int:
        """The slot of a key whose murmur hash is `key_hash`; never 0."""
        ...

    def select(self, slot: int) -> C | None: ...
    def add(self, consumer: C) -> None: ...
    def remove(self, consumer: C) -> None: ...
    def ranges(self, consumer: C) -> list[SlotRange]: ...


class _Assignments(Generic[C]):
    """Sorted, gapless runs of slots: run i ends at `_ends[i]` (included) and belongs to `_owners[i]`."""

    def __init__(self) -> None:
        self._ends: list[int] = []
        self._owners: list[C] = []

    def _assign(self, runs: Iterable[tuple[int, C]]) -> None:
        self._ends, self._owners = [], []
        for end, owner in runs:
            if self._owners and self._owners[-1] is owner:
                self._ends[-1] = end
            else:
                self._ends.append(end)
                self._owners.append(owner)

    def select(self, slot: int) -> C | None:
        if not self._ends:
            return None
        # An array instead of Pulsar's tree of ring points: select runs for each entry, a rebuild only for
        # each consumer.
        return self._owners[bisect_left(self._ends, slot)]

    def _ranges(self, consumer: C, first: int) -> list[SlotRange]:
        found = []
        for end, owner in zip(self._ends, self._owners, strict=True):
            if owner is consumer:
                found.append(SlotRange(first, end))
            first = end + 1
        return found


class ConsistentHashSelector(_Assignments[C]):
    """AUTO_SPLIT by a hash ring: a consumer that comes or goes moves only the slots that it takes or leaves.

    Consumers of the same name get points of their own, by the smallest index that no consumer of that name
    has.
    """

    def __init__(self, points: int = RING_POINTS) -> None:
        super().__init__()
        self._points = points
        self._ring: dict[int, list[C]] = {}
        self._index: dict[int, int] = {}
        self._names: dict[str, set[int]] = {}

    def slot(self, key_hash: int) -> int:
        # As Pulsar's ring, whose range begins behind 0 ("not set"); its other selectors turn a 0 into 1
        # instead.
        return key_hash % (SLOTS - 1) + 1

    def add(self, consumer: C) -> None:
        taken = self._names.setdefault(consumer.name, set())
        # Consumers of one name would share all points, and all but one of them get nothing. As in Pulsar's
        # ConsumerNameIndexTracker, a consumer that leaves and comes back at once has its former slots.
        index = next(i for i in range(len(taken) + 1) if i not in taken)
        taken.add(index)
        self._index[id(consumer)] = index
        for point in self._points_of(consumer.name, index):
            # Two consumers on one point: the first has it, the others follow when it leaves.
            self._ring.setdefault(point, []).append(consumer)
        self._rebuild()

    def remove(self, consumer: C) -> None:
        index = self._index.pop(id(consumer), None)
        if index is None:
            return
        taken = self._names[consumer.name]
        taken.remove(index)
        if not taken:
            del self._names[consumer.name]
        # A set, as two points of one consumer may collide: the second removal would not find its list.
        for point in set(self._points_of(consumer.name, index)):
            at_point = [c for c in self._ring[point] if c is not consumer]
            if at_point:
                self._ring[point] = at_point
            else:
                del self._ring[point]
        self._rebuild()

    def ranges(self, consumer: C) -> list[SlotRange]:
        return self._ranges(consumer, first=1)

    def _points_of(self, name: str, index: int) -> list[int]:
        # Pulsar's text, byte for byte: the table in tests/oracle has the owners of all slots, computed by its
        # classes.
        return [self.slot(sticky_hash(f"{name}\0{index}\0{point}".encode())) for point in range(self._points)]

    def _rebuild(self) -> None:
        runs = [(point, self._ring[point][0]) for point in sorted(self._ring)]
        if runs and runs[-1][0] != SLOTS - 1:
            # The ring is closed: behind the last point it goes on with the first one.
            runs.append((SLOTS - 1, runs[0][1]))
        self._assign(runs)


class RangeSplitSelector(_Assignments[C]):
    """AUTO_SPLIT without a ring: a new consumer gets the lower half of the widest range."""

    def __init__(self) -> None:
        super().__init__()
        self._split: dict[int, C] = {}

    def slot(self, key_hash: int) -> int:
        return key_hash % SLOTS or 1

    def add(self, consumer: C) -> None:
        end = SLOTS
        if self._split:
            low, end = self._widest()
            if end - low <= 1:
                raise ConsumerAssign(
                    f"No more range can assigned to new consumer, assigned consumers {len(self._split)}"
                )
            end -= (end - low) >> 1
        self._split[end] = consumer
        self._assign(sorted(self._split.items()))

    def remove(self, consumer: C) -> None:
        end = next((e for e, c in self._split.items() if c is consumer), None)
        if end is None:
            return
        del self._split[end]
        if end == SLOTS and self._split:
            # Pulsar gives a range that ends to the next higher one. Above the last there is none, so its
            # lower neighbour takes it.
            self._split[SLOTS] = self._split.pop(max(self._split))
        self._assign(sorted(self._split.items()))

    def ranges(self, consumer: C) -> list[SlotRange]:
        return self._ranges(consumer, first=0)

    def _widest(self) -> tuple[int, int]:
        low, widest = 0, (0, 0)
        for end in sorted(self._split):
            # The first of the widest, as Pulsar's findBiggestRange: keys would go elsewhere with the last
            # one.
            if end - low > widest[1] - widest[0]:
                widest = (low, end)
            low = end
        return widest


class StickyRangeSelector(Generic[C]):
    """STICKY: each consumer names its own ranges; hashes outside all of them wait."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._runs: list[tuple[SlotRange, C]] = []

    def slot(self, key_hash: int) -> int:
        return key_hash % SLOTS or 1

    def select(self, slot: int) -> C | None:
        at = bisect_right(self._starts, slot) - 1
        if at < 0:
            return None
        found, consumer = self._runs[at]
        return consumer if slot <= found.end else None

    def add(self, consumer: C) -> None:
        """Raises `ConsumerAssign` when the ranges are missing, malformed, too many, or taken.

        O(the consumer's ranges * log(all ranges)), and a merge of both.
        """
        if len(consumer.key_ranges) > RANGES_MAX:
            raise ConsumerAssign(f"Ranges for KeyShared policy must not be more than {RANGES_MAX}.")
        ranges = sorted(consumer.key_ranges)
        if not ranges:
            raise ConsumerAssign("Ranges for KeyShared policy must not be empty.")
        for at, (start, end) in enumerate(ranges):
            if start > end:
                raise ConsumerAssign(f"Fixed hash range start > end for range: [{start},{end}]")
            if at and ranges[at - 1].end >= start:
                before = ranges[at - 1]
                raise ConsumerAssign(
                    f"Consumer's own ranges conflict: [{before.start},{before.end}] overlaps with "
                    f"[{start},{end}]"
                )
        for start, end in ranges:
            # Runs do not overlap: if any of them reaches into this range, so does the last that starts in it
            # or before it.
            at = bisect_right(self._starts, end) - 1
            if at >= 0 and self._runs[at][0].end >= start:
                raise ConsumerAssign(f"Range conflict with consumer {self._runs[at][1]}")
        self._set([*self._runs, *((wanted, consumer) for wanted in ranges)])

    def remove(self, consumer: C) -> None:
        self._set([run for run in self._runs if run[1] is not consumer])

    def ranges(self, consumer: C) -> list[SlotRange]:
        return [found for found, owner in self._runs if owner is consumer]

    def _set(self, runs: list[tuple[SlotRange, C]]) -> None:
        self._runs = sorted(runs, key=lambda run: run[0])
        self._starts = [found.start for found, _ in self._runs]


class DrainingSlot(Generic[C]):
    """A slot that moved to another consumer while `unacked` of its entries were pending at `consumer`."""

    __slots__ = ("blocked_attempts", "consumer", "unacked")

    def __init__(self, consumer: C, blocked_attempts: int = 0) -> None:
        self.consumer = consumer
        self.unacked = 0
        self.blocked_attempts = blocked_attempts


class DrainingSlots(Generic[C]):
    """Slots whose keys must not be sent to their new consumer yet (PIP-379).

    Empty nearly always: it is filled when consumers come or go, and shrinks with each acknowledgement. While
    it is empty, neither dispatch nor acknowledgement pays for it.
    """

    def __init__(self) -> None:
        self.slots: dict[int, DrainingSlot[C]] = {}
        self.cleared: dict[int, int] = {}
        """id(consumer) -> how many of its draining slots have been cleared."""

    def __bool__(self) -> bool:
        return bool(self.slots)

    def reassigned(self, pending: Iterable[tuple[C, Iterable[int]]], selector: Selector[C]) -> None:
        """Consumers came or went: recount which pending entries (their slots, by consumer) are in moved
        slots.
        """
        # Counted again instead of adjusted: a slot may have gone back to the consumer that holds its entries,
        # and then does not drain any more.
        before, self.slots = self.slots, {}
        for consumer, slots in pending:
            for slot in slots:
                if selector.select(slot) is consumer:
                    continue
                draining = self.slots.get(slot)
                if draining is None:
                    old = before.get(slot)
                    draining = DrainingSlot(consumer, old.blocked_attempts if old else 0)
                    self.slots[slot] = draining
                # Pulsar throws IllegalStateException here: with two owners the order of the key is lost
                # already.
                assert draining.consumer is consumer, "one slot is pending at two consumers"
                draining.unacked += 1

    def is_blocked(self, consumer: C, slot: int) -> bool:
        """Whether an entry of this slot has to wait although `consumer` is its consumer now."""
        draining = self.slots.get(slot)
        if draining is None or draining.consumer is consumer:
            return False
        # Shown in statistics, and it spares a round when a slot is free that no entry waits for.
        draining.blocked_attempts += 1
        return True

    def settled(self, consumer: C, slot: int) -> bool:
        """One entry is not pending at `consumer` any more. True: the slot is free and a consumer waited
        for it.
        """
        draining = self.slots.get(slot)
        if draining is None or draining.consumer is not consumer:
            return False
        draining.unacked -= 1
        if draining.unacked:
            return False
        del self.slots[slot]
        self.cleared[id(consumer)] = self.cleared.get(id(consumer), 0) + 1
        return draining.blocked_attempts > 0

    def forget(self, consumer: C) -> None:
        """The consumer is gone; what was pending at it is not pending any more."""
        self.cleared.pop(id(consumer), None)
        self.slots = {s: d for s, d in self.slots.items() if d.consumer is not consumer}

    def of(self, consumer: C) -> dict[int, DrainingSlot[C]]:
        return {s: d for s, d in self.slots.items() if d.consumer is consumer}
