"""Which consumer gets which entry: a dispatcher's choices as plain functions. No await, no clock, no
randomness.

Entries are the unit of choosing, messages the unit of permits: an entry with several messages goes out whole,
so a consumer's permits may end below zero by at most the last entry's messages less one (Pulsar lets them
fall further).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Sequence
from itertools import chain
from typing import NamedTuple, Protocol, TypeVar

from geminga.wire.message_metadata import sticky_hash

# Pulsar's default: with more, the first of several consumers takes what a short read brings.
ROUND_ROBIN_ENTRIES_MAX = 20
"""Entries that one consumer gets before it is the next one's turn (`dispatcherMaxRoundRobinBatchSize`)."""
# Pulsar's CONSUMER_CONSISTENT_HASH_REPLICAS; another number would make another consumer active.
FAILOVER_RING_POINTS = 100


class Candidate(Protocol):
    """What a choice may know of a consumer."""

    @property
    def name(self) -> str: ...
    @property
    def priority_level(self) -> int: ...

    def capacity(self) -> int:
        """How many messages it may be sent now; 0 when blocked, unwritable, closed, or out of permits."""
        ...


class Share(NamedTuple):
    """Entries `start` to `end` (excluded) go to consumer number `consumer`."""

    consumer: int
    start: int
    end: int


def next_consumer(levels: Sequence[int], is_available: Callable[[int], bool], turn: int) -> int:
    """Whose turn it is, by number; -1 if no one is available.

    `levels` are the consumers' priority levels, ascending: 0 is served first, and a level gets nothing while
    a level with a lower number has an available consumer. Within a level it goes round, from `turn` on. The
    next turn is the result + 1.
    """
    count = len(levels)
    if not count:
        return -1
    # Consumers may have left since the turn was noted. Pulsar's getNextConsumer begins with the first then.
    if turn >= count:
        turn = 0
    level = levels[turn]
    higher = bisect_left(levels, level)
    for number in range(higher):
        if is_available(number):
            return number
    end = bisect_left(levels, level + 1)
    for number in chain(range(turn, end), range(higher, turn), range(end, count)):
        if is_available(number):
            return number
    return -1


def share_round_robin(
    sizes: Sequence[int],
    consumers: Sequence[Candidate],
    turn: int,
    entries_max: int = ROUND_ROBIN_ENTRIES_MAX,
) -> tuple[list[Share], int]:
    """Share entries of `sizes` messages each between consumers sorted by level; returns the shares and the
    next turn.

    Entries after the last share found no permits. O(entries + consumers looked at).
    """
    levels = [c.priority_level for c in consumers]
    left: dict[int, int] = {}
    if len(consumers) == 1:
        # With one consumer there is no other whose turn it could be: one share, and one write.
        entries_max = max(len(sizes), 1)

    def capacity(number: int) -> int:
        # Asked once: what is shared here is subtracted from the consumer only when it is sent.
        if number not in left:
            left[number] = consumers[number].capacity()
        return left[number]

    shares: list[Share] = []
    start, count = 0, len(sizes)
    while start < count:
        number = next_consumer(levels, lambda n: capacity(n) > 0, turn)
        if number < 0:
            break
        turn = number + 1
        end = start
        room = left[number]
        # `room > 0` and not `room >= size`: a batch that is larger than any consumer's queue would never be
        # sent.
        while end < count and room > 0 and end - start < entries_max:
            room -= sizes[end]
            end += 1
        left[number] = room
        shares.append(Share(number, start, end))
        start = end
    return shares, turn


K = TypeVar("K", bound=Hashable)


def share_by_key(
    slots: Sequence[int],
    sizes: Sequence[int],
    select: Callable[[int], K | None],
    capacity: Callable[[K], int],
    is_blocked: Callable[[K, int], bool],
) -> tuple[dict[K, list[int]], list[int]]:
    """Share entries by key: (entry numbers by consumer, entry numbers that must wait), both in order.

    Once an entry of a slot has to wait, all later ones of that slot wait behind it.
    """
    shares: dict[K, list[int]] = {}
    waiting: list[int] = []
    # Pulsar's alreadyBlockedHashes: a slot that waits is looked at once, and one blocked attempt is counted.
    held: set[int] = set()
    left: dict[K, int] = {}
    for number, slot in enumerate(slots):
        if slot in held:
            waiting.append(number)
            continue
        consumer = select(slot)
        # None with sticky ranges that leave a gap: such keys wait for a consumer that names them.
        if consumer is not None:
            room = left.get(consumer)
            if room is None:
                room = left[consumer] = capacity(consumer)
            if room > 0 and not is_blocked(consumer, slot):
                left[consumer] = room - sizes[number]
                taken = shares.get(consumer)
                if taken is None:
                    shares[consumer] = [number]
                else:
                    taken.append(number)
                continue
        held.add(slot)
        waiting.append(number)
    return shares, waiting


A = TypeVar("A", bound=Candidate)


def choose_active(
    consumers: Sequence[A], topic: str, partition_index: int, *, always_by_hash: bool = False
) -> A:
    """The one consumer of a Failover subscription that gets messages.

    Among those of the best priority level, by name: partition i takes the i-th (modulo), so that a topic's
    partitions spread over its consumers; a topic without partitions takes the first ring point after its own
    hash.
    """
    # By name, as in Pulsar: each partition comes to the same order by itself, so that they spread over the
    # consumers.
    ranked = sorted(consumers, key=lambda c: (c.priority_level, _java_order(c.name)))
    best = [c for c in ranked if c.priority_level == ranked[0].priority_level]
    if len(best) == 1:
        return best[0]
    if partition_index >= 0 and not always_by_hash:
        return best[partition_index % len(best)]
    ring = {
        sticky_hash(f"{consumer.name}{point}".encode()): consumer
        for consumer in best
        for point in range(FAILOVER_RING_POINTS)
    }
    # A tie is won by the consumer that comes last, as in Pulsar's TreeMap: `ring` is filled in the same
    # order.
    points = sorted(ring)
    at = bisect_left(points, sticky_hash(topic.encode()))
    return ring[points[at] if at < len(points) else points[0]]


def _java_order(name: str) -> bytes:
    """Java compares strings by UTF-16 units, which beyond the basic plane is not Python's order."""
    return name.encode("utf-16-be", "surrogatepass")
