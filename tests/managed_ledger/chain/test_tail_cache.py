"""The tail cache against a model; its bound; and that it lets go of what it evicts."""

from __future__ import annotations

import random
import sys

import pytest
import trio
import trio.testing

from geminga.managed_ledger.chain.entry import Entry, Parsed
from geminga.managed_ledger.chain.tail_cache import (
    ENTRY_OVERHEAD_BYTES,
    STRIDE_BYTES,
    TURNS_OF_AGE,
    TailCache,
    TailRun,
)
from geminga.managed_ledger.managed_ledger import ManagedLedgerSettings
from geminga.position import Position

EACH = 100 + ENTRY_OVERHEAD_BYTES
"""What an entry of 100 bytes counts."""


def add(run: TailRun, first: int, slots: list[bytes | Parsed | Entry]) -> int:
    """Append a run of entries, as the appender does; returns the id after it."""
    size_bytes = sum(len(slot if isinstance(slot, bytes) else slot.body) for slot in slots)
    run.waiting.append((first + len(slots), list(slots), size_bytes))
    return first + len(slots)


def ids(entries: list[Entry]) -> list[int]:
    return [entry.position.entry_id for entry in entries]


def test_bodies_are_shared_not_copied_and_wrapped_once() -> None:
    cache = TailCache()
    run = cache.open_run(5)
    body = bytes(1000)
    add(run, 10, [body])
    cache.confirm(run, 10)
    (entry,) = cache.read(5, 10, 11, 1)
    assert entry.body is body
    assert entry.position == (5, 10)
    assert isinstance(entry.position, Position)
    entry.peek = "parsed"
    assert cache.read(5, 10, 99, 1000)[0] is entry


def test_only_confirmed_entries_are_visible() -> None:
    cache = TailCache()
    run = cache.open_run(5)
    add(run, 0, [b"a", b"b"])
    add(run, 2, [Entry(Position(5, 2), b"c", "peeked")])
    assert cache.read(5, 0, 9, 99) == []
    assert cache.statistics().entries_inserted == 0
    cache.confirm(run, 1)
    assert [e.body for e in cache.read(5, 0, 9, 99 + 2 * ENTRY_OVERHEAD_BYTES)] == [b"a", b"b"]
    assert cache.read(5, 2, 9, 99) == []
    cache.confirm(run, 2)
    assert [e.peek for e in cache.read(5, 1, 9, 99 + 2 * ENTRY_OVERHEAD_BYTES)] == [None, "peeked"]
    statistics = cache.statistics()
    assert (statistics.entries_inserted, statistics.bytes_used) == (3, 3 * (1 + ENTRY_OVERHEAD_BYTES))
    assert (statistics.entries_served, statistics.bytes_served) == (4, 4)


class ParsedBody:
    def __init__(self, body: bytes) -> None:
        self.body = body


def test_what_was_parsed_of_a_body_comes_with_its_entry() -> None:
    cache = TailCache()
    run = cache.open_run(5)
    parsed = [ParsedBody(b"%d" % number) for number in range(4)]
    add(run, 0, [parsed[0], parsed[1], b"2", parsed[3], b"4"])
    cache.confirm(run, 4)
    assert cache.statistics().bytes_used == 5 * (1 + ENTRY_OVERHEAD_BYTES)
    first = cache.read(5, 0, 2, 1 << 20)
    assert [entry.peek for entry in first] == parsed[:2]
    entries = cache.read(5, 0, 9, 1 << 20)
    assert [entry.body for entry in entries] == [b"0", b"1", b"2", b"3", b"4"]
    assert [entry.position.entry_id for entry in entries] == [0, 1, 2, 3, 4]
    assert [entry.peek for entry in entries] == [parsed[0], parsed[1], None, parsed[3], None]
    assert entries[0] is first[0], "made once"
    assert cache.read(5, 0, 9, 1 << 20)[2] is entries[2]


async def test_what_was_parsed_goes_along_while_an_entry_waits_for_the_next_ledger(rooms):
    async with rooms() as r:
        ledger = await r.open(ManagedLedgerSettings(ledger_entries_max=2, rollover_min_ms=0))
        await ledger.open_cursor("c", initial="earliest")
        parsed = [ParsedBody(b"%d" % number) for number in range(3)]
        for one in parsed:
            ledger.append([one.body], None, [one])
        assert ledger.listener.confirmed == {}
        await ledger.listener.settled(3)
        (entry,) = ledger.read_cached(ledger.last_confirmed, 1, 1 << 20)
        assert entry.position.entry_id == 0, "in the second ledger"
        assert entry.peek is parsed[2]


def test_run_that_begins_among_unconfirmed_entries() -> None:
    cache = TailCache()
    run = cache.open_run(5)
    add(run, 3, [b"d"])
    cache.confirm(run, 1)  # entries before the run
    assert cache.read(5, 1, 9, 99) == []
    cache.confirm(run, 3)
    assert cache.read(5, 1, 9, 99) == []
    assert [e.body for e in cache.read(5, 3, 9, 99)] == [b"d"]


def test_bound_holds_and_the_oldest_of_the_process_leave_first() -> None:
    cache = TailCache(bytes_max=1 << 20)
    runs = [cache.open_run(ledger) for ledger in range(4)]
    pick = random.Random(1)
    held: list[tuple[int, int]] = []
    counts = [0] * 4
    for _ in range(4000):
        ledger = pick.randrange(4)
        for _ in range(1 + pick.randrange(5)):
            add(runs[ledger], counts[ledger], [bytes(pick.randrange(2000))])
            held.append((ledger, counts[ledger]))
            counts[ledger] += 1
        cache.confirm(runs[ledger], counts[ledger] - 1)
        assert cache.statistics().bytes_used <= cache.bytes_max
    kept = [place for place in held if cache.read(*place, place[1] + 1, 1)]
    entries = [e for run in runs for stride in run.strides for e in stride.slots if isinstance(e, Entry)]
    assert len(entries) == len(kept) == len(held) - cache.statistics().entries_evicted
    assert cache.statistics().entries_inserted == len(held)
    in_memory = sum(sys.getsizeof(e.body) - sys.getsizeof(b"") + ENTRY_OVERHEAD_BYTES for e in entries)
    assert in_memory == cache.statistics().bytes_used
    assert in_memory > cache.bytes_max - 2 * STRIDE_BYTES
    # Oldest first, to within the strides of the four runs.
    assert held.index(kept[0]) > len(held) - len(kept) - 4 * STRIDE_BYTES // ENTRY_OVERHEAD_BYTES
    for ledger in range(4):
        assert cache.read(ledger, 0, 9, 99) == []


def test_one_entry_larger_than_the_cache_passes_through() -> None:
    cache = TailCache(bytes_max=1000)
    run = cache.open_run(1)
    add(run, 0, [bytes(5000)])
    cache.confirm(run, 0)
    assert cache.read(1, 0, 1, 9999) == []
    assert cache.statistics().bytes_used == 0


def test_discarded_and_closed_runs_leave_nothing_behind() -> None:
    cache = TailCache(bytes_max=1 << 20)
    for ledger in range(1000):
        run = cache.open_run(ledger)
        add(run, 0, [bytes(500)] * 10)
        cache.confirm(run, 9)
        if ledger % 2:
            cache.discard(ledger)
            assert cache.read(ledger, 9, 10, 1 << 20) == []
        else:
            cache.close_run(ledger)
    statistics = cache.statistics()
    assert statistics.bytes_used <= 1 << 20
    assert statistics.ledgers < 200
    assert statistics.strides < 400
    assert len(cache.read(998, 9, 10, 1 << 20)) == 1
    assert cache.read(0, 9, 10, 1 << 20) == []


def test_bytes_of_a_read_are_bounded_but_one_entry_always_comes() -> None:
    cache = TailCache()
    run = cache.open_run(1)
    add(run, 0, [bytes(100)] * 10)
    cache.confirm(run, 9)
    assert ids(cache.read(1, 0, 10, 3 * EACH)) == [0, 1, 2]
    assert ids(cache.read(1, 4, 10, 3 * EACH - 1)) == [4, 5]
    assert ids(cache.read(1, 4, 6, 3 * EACH)) == [4, 5]
    assert ids(cache.read(1, 9, 10, 1)) == [9]
    assert ids(cache.read(1, 8, 10, 0)) == [8]
    assert ids(cache.read(1, 0, 10, 10 * EACH)) == list(range(10))
    assert ids(cache.read(1, 0, 10, 10 * EACH - 1)) == list(range(9))
    assert cache.read(1, 10, 11, 1) == []
    assert cache.statistics().bytes_served == 100 * cache.statistics().entries_served == 2800


def test_a_read_goes_over_the_border_of_strides_within_its_bytes() -> None:
    cache = TailCache()
    run = cache.open_run(1)
    for first in (0, 4, 8):
        add(run, first, [bytes(100)] * 4)
        cache.confirm(run, first + 3)
        cache.turn()
    assert cache.statistics().strides == 3
    assert ids(cache.read(1, 0, 12, 1 << 20)) == list(range(12))
    assert ids(cache.read(1, 3, 9, 1 << 20)) == [3, 4, 5, 6, 7, 8]
    assert ids(cache.read(1, 2, 12, 2 * EACH)) == [2, 3], "full at the border"
    assert ids(cache.read(1, 2, 12, 3 * EACH - 1)) == [2, 3], "not one more, as the first entry would be"
    assert ids(cache.read(1, 2, 12, 7 * EACH)) == [2, 3, 4, 5, 6, 7, 8]
    assert ids(cache.read(1, 2, 4, 1 << 20)) == [2, 3]
    served = cache.statistics()
    assert (served.entries_served, served.bytes_served) == (31, 3100)
    whole = cache.read(1, 0, 12, 1 << 20)
    assert all(one is other for one, other in zip(whole[3:9], cache.read(1, 3, 9, 1 << 20), strict=True))


def test_a_long_run_is_a_stride_of_its_own_and_what_is_confirmed_with_it_is_cut() -> None:
    cache = TailCache()
    run = cache.open_run(1)
    end = 0
    for count in (1, 200, 60, 60, 60, 1):
        end = add(run, end, [bytes(100)] * count)
    cache.confirm(run, end - 1)
    assert [(stride.first, len(stride.slots)) for stride in run.strides] == [(0, 201), (201, 180), (381, 1)]
    assert [stride.size_bytes for stride in run.strides] == [201 * EACH, 180 * EACH, EACH]
    assert ids(cache.read(1, 199, 382, 1 << 20)) == list(range(199, 382))


def test_a_list_that_was_read_stays_as_it_was_while_its_stride_grows() -> None:
    cache = TailCache()
    run = cache.open_run(1)
    add(run, 0, [b"a", b"b"])
    cache.confirm(run, 1)
    read = cache.read(1, 0, 9, 1 << 20)
    add(run, 2, [b"c"])
    cache.confirm(run, 2)
    assert ids(read) == [0, 1]
    read.clear()
    assert ids(cache.read(1, 0, 9, 1 << 20)) == [0, 1, 2]
    assert cache.statistics().strides == 1


@pytest.mark.parametrize("seed", range(20))
def test_reads_of_any_part_against_a_plain_list(seed: int) -> None:
    pick = random.Random(seed)
    cache = TailCache()
    run = cache.open_run(1)
    held: list[bytes] = []
    made: dict[int, Entry] = {}
    visible = 0
    for number in range(60):
        for _ in range(pick.randrange(4)):
            slots = [pick.randbytes(pick.choice([1, 100, 3000])) for _ in range(pick.choice([1, 1, 5, 40]))]
            parsed = [ParsedBody(body) if pick.random() < 0.2 else body for body in slots]
            add(run, len(held), list(parsed) if pick.random() < 0.5 else list(slots))
            held += slots
            if pick.random() < 0.7:
                visible = len(held)
        if visible:
            cache.confirm(run, visible - 1)
        if number % 20 == 19:
            cache.turn()
        for _ in range(4):
            # As readers at the tail ask, or anywhere.
            first = visible - 1 - pick.randrange(60) if pick.random() < 0.7 else pick.randrange(visible + 1)
            first = max(first, 0)
            stop = min(visible, first + pick.choice([1, 3, 50, 10_000]))
            bytes_max = pick.choice([0, 500, 5000, 50_000, 1 << 30])
            before = cache.statistics()
            found = cache.read(1, first, stop, bytes_max)
            wanted, left = 0, bytes_max
            while first + wanted < stop:
                left -= len(held[first + wanted]) + ENTRY_OVERHEAD_BYTES
                if left < 0 and wanted:
                    break
                wanted += 1
            assert ids(found) == list(range(first, first + wanted))
            for entry in found:
                assert entry.body is held[entry.position.entry_id]
                assert made.setdefault(entry.position.entry_id, entry) is entry
            served = cache.statistics()
            assert served.entries_served - before.entries_served == wanted
            assert served.bytes_served - before.bytes_served == sum(len(e.body) for e in found)
    assert cache.statistics().bytes_used == sum(map(len, held[:visible])) + visible * ENTRY_OVERHEAD_BYTES


def filled(cache: TailCache, ledger_id: int, entries: int, needed: list[int]) -> TailRun:
    run = cache.open_run(ledger_id, lambda _: needed[0])
    for entry_id in range(entries):
        add(run, entry_id, [bytes(100)])
        cache.confirm(run, entry_id)
    return run


def test_strides_that_every_active_cursor_has_read_leave_after_the_turn() -> None:
    cache, needed = TailCache(2 * 15 * EACH), [0]
    run = filled(cache, 1, 10, needed)
    needed[0] = 10
    cache.turn()
    add(run, 10, [bytes(100)] * 5)
    cache.confirm(run, 14)
    assert ids(cache.read(1, 0, 15, 1 << 20)) == list(range(15))
    needed[0] = 9
    cache.turn()
    assert ids(cache.read(1, 9, 10, 1 << 20)) == [9], "one of its stride is not read yet"
    needed[0] = 16
    add(run, 15, [bytes(100)])
    cache.confirm(run, 15)
    cache.turn()
    assert cache.read(1, 9, 10, 1 << 20) == cache.read(1, 14, 15, 1 << 20) == []
    assert ids(cache.read(1, 15, 16, 1 << 20)) == [15], "of this turn: it may be wanted once more"
    statistics = cache.statistics()
    assert (statistics.bytes_used, statistics.strides) == (EACH, 1)
    assert (statistics.entries_evicted, statistics.evictions) == (15, 0)


def test_a_discarded_ledger_is_gone_with_what_waits_in_it() -> None:
    cache = TailCache()
    old = filled(cache, 1, 10, [0])
    other = filled(cache, 2, 10, [0])
    add(old, 10, [bytes(100)])
    run = cache.open_run(1)
    cache.confirm(old, 10)
    assert (old.waiting, old.strides) == ([], [])
    assert cache.read(1, 0, 11, 1 << 20) == []
    statistics = cache.statistics()
    assert (statistics.strides, statistics.ledgers, statistics.bytes_used) == (1, 2, 10 * EACH)
    assert (statistics.entries_inserted, statistics.entries_evicted) == (20, 10)
    add(run, 11, [bytes(100)])
    cache.confirm(run, 11)
    assert ids(cache.read(1, 11, 12, 1)) == [11]
    assert len(other.strides) == 1


def test_cursors_are_not_asked_while_the_cache_is_less_than_half_full() -> None:
    asked: list[int] = []

    def first_needed(ledger_id: int) -> int:
        asked.append(ledger_id)
        return 0

    cache = TailCache(2 * 10 * EACH)
    run = cache.open_run(1, first_needed)
    add(run, 0, [bytes(100)] * 9)
    cache.confirm(run, 8)
    cache.turn()
    cache.turn()
    assert asked == []
    add(run, 9, [bytes(100)])
    cache.confirm(run, 9)
    cache.turn()
    assert asked == [1]


def test_what_nobody_reads_leaves_by_age() -> None:
    cache, needed = TailCache(), [0]
    filled(cache, 1, 3, needed)
    for _ in range(TURNS_OF_AGE):
        assert len(cache.read(1, 0, 3, 1 << 20)) == 3
        cache.turn()
    cache.turn()
    assert cache.read(1, 0, 3, 1 << 20) == []
    assert (cache.statistics().bytes_used, cache.statistics().strides) == (0, 0)


async def test_a_cache_that_was_empty_wakes_for_what_comes(autojump_clock: trio.testing.MockClock) -> None:
    cache = TailCache()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cache.run_forever)
        for ledger_id in range(2):
            await trio.sleep(1)
            filled(cache, ledger_id, 3, [0])
            assert cache.statistics().strides == 1
            await trio.sleep(2)
            assert cache.statistics().strides == 0
        nursery.cancel_scope.cancel()


def test_closed_runs_that_were_read_are_forgotten_with_their_strides() -> None:
    cache = TailCache()
    for ledger_id in range(50):
        filled(cache, ledger_id, 20, [20])
        cache.close_run(ledger_id)
        cache.turn()
    for _ in range(TURNS_OF_AGE + 1):
        cache.turn()
    assert cache.statistics().ledgers == cache.statistics().strides == 0
    filled(cache, 99, 20, [0])
    assert len(cache.read(99, 0, 20, 1 << 20)) == 20


def test_a_closed_run_shows_what_was_on_its_way_and_is_forgotten_then() -> None:
    cache = TailCache()
    run = cache.open_run(1)
    add(run, 0, [bytes(100)])
    # The ledger is full, before its only entry is durable.
    cache.close_run(1)
    assert cache.statistics().ledgers == 1
    cache.confirm(run, 0)
    assert ids(cache.read(1, 0, 1, 1)) == [0]
    for _ in range(TURNS_OF_AGE + 1):
        cache.turn()
    assert (cache.statistics().ledgers, run.waiting) == (0, [])


@pytest.mark.parametrize("shown", [0, 1])
def test_a_closed_run_whose_last_entries_failed_is_forgotten(shown: int) -> None:
    cache = TailCache()
    run = cache.open_run(1)
    add(run, add(run, 0, [bytes(100)]), [bytes(100)])
    if shown:
        cache.confirm(run, 0)
    cache.close_run(1)
    cache.failed(run)
    assert (cache.statistics().ledgers, run.waiting) == (shown, [])
    for _ in range(TURNS_OF_AGE + 1):
        cache.turn()
    assert cache.statistics().ledgers == cache.statistics().strides == 0


async def test_a_reader_at_the_tail_never_touches_the_bookie_and_a_slow_one_drops_out(rooms, publish):
    async with rooms() as r:
        cache = r.tail_cache = TailCache(100_000, backlogged_entries=50)
        ledger = await r.open()
        fast = await ledger.open_cursor("fast", initial="earliest")
        slow = await ledger.open_cursor("slow", initial="earliest")
        for number in range(20):
            await publish(ledger, [bytes(1000)] * 10)
            entries = await ledger.read(fast.read_position, 100, 1 << 20)
            assert len(entries) == 10
            fast.read_position = entries[-1].position.next()
            cache.turn()
            if number == 3:  # both are active: what the slow one has to read stays
                assert len(ledger.read_cached(slow.read_position, 100, 1 << 20)) == 40
                assert cache.statistics().entries_missed == 0
        assert cache.statistics().entries_served == 240
        assert cache.statistics().bytes_served == 240 * 1000
        assert cache.statistics().entries_missed == 0
        held_bytes = cache.statistics().bytes_used
        assert held_bytes <= 3 * 10 * (1000 + ENTRY_OVERHEAD_BYTES)
        entries = await ledger.read(slow.read_position, 100, 1 << 20)
        assert len(entries) == 100
        assert cache.statistics().entries_missed == 100
        assert cache.statistics().bytes_used == held_bytes  # it has pushed nothing out
