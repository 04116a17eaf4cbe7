"""The tail cache against a model; its bound; and that it lets go of what it evicts."""

from __future__ import annotations

import random
import sys

from geminga.managed_ledger.chain.entry import Entry
from geminga.managed_ledger.chain.tail_cache import (
    ENTRY_OVERHEAD_BYTES,
    STRIDE_BYTES,
    TURNS_OF_AGE,
    TailCache,
    TailRun,
)
from geminga.managed_ledger.managed_ledger import ManagedLedgerSettings
from geminga.position import Position


def test_bodies_are_shared_not_copied_and_wrapped_once() -> None:
    cache = TailCache()
    run = cache.open_run(5, 10)
    body = bytes(1000)
    run.slots.append(body)
    cache.confirm(run, 10)
    (entry,) = run.read(10, 11, 1)
    assert entry.body is body
    assert entry.position == (5, 10)
    assert isinstance(entry.position, Position)
    entry.peek = "parsed"
    assert run.read(10, 99, 1000)[0] is entry


def test_only_confirmed_entries_are_visible() -> None:
    cache = TailCache()
    run = cache.open_run(5, 0)
    run.slots += [b"a", b"b", Entry(Position(5, 2), b"c", "peeked")]
    assert run.read(0, 9, 99) == []
    cache.confirm(run, 1)
    assert [e.body for e in run.read(0, 9, 99 + 2 * ENTRY_OVERHEAD_BYTES)] == [b"a", b"b"]
    cache.confirm(run, 2)
    assert [e.peek for e in run.read(1, 9, 99 + 2 * ENTRY_OVERHEAD_BYTES)] == [None, "peeked"]


class ParsedBody:
    def __init__(self, body: bytes) -> None:
        self.body = body


def test_what_was_parsed_of_a_body_comes_with_its_entry() -> None:
    cache = TailCache()
    run = cache.open_run(5, 0)
    parsed = [ParsedBody(b"%d" % number) for number in range(4)]
    run.slots += [parsed[0], parsed[1], b"2", parsed[3], b"4"]
    cache.confirm(run, 4)
    assert cache.statistics().bytes_used == 5 * (1 + ENTRY_OVERHEAD_BYTES)
    first = run.read(0, 2, 1 << 20)
    assert [entry.peek for entry in first] == parsed[:2]
    entries = run.read(0, 9, 1 << 20)
    assert [entry.body for entry in entries] == [b"0", b"1", b"2", b"3", b"4"]
    assert [entry.position.entry_id for entry in entries] == [0, 1, 2, 3, 4]
    assert [entry.peek for entry in entries] == [parsed[0], parsed[1], None, parsed[3], None]
    assert entries[0] is first[0], "made once"
    assert run.read(0, 9, 1 << 20)[2] is entries[2]


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
    run = cache.open_run(5, 3)
    run.slots.append(b"d")
    cache.confirm(run, 1)  # entries before the run
    assert run.read(1, 9, 99) == []
    cache.confirm(run, 3)
    assert [e.body for e in run.read(3, 9, 99)] == [b"d"]


def test_bound_holds_and_the_oldest_of_the_process_leave_first() -> None:
    cache = TailCache(bytes_max=1 << 20)
    runs = [cache.open_run(ledger, 0) for ledger in range(4)]
    pick = random.Random(1)
    held: list[tuple[int, int]] = []
    counts = [0] * 4
    for _ in range(4000):
        ledger = pick.randrange(4)
        for _ in range(1 + pick.randrange(5)):
            runs[ledger].slots.append(bytes(pick.randrange(2000)))
            held.append((ledger, counts[ledger]))
            counts[ledger] += 1
        cache.confirm(runs[ledger], counts[ledger] - 1)
        assert cache.statistics().bytes_used <= cache.bytes_max
    kept = [place for place in held if runs[place[0]].read(place[1], place[1] + 1, 1)]
    in_memory = sum(
        sys.getsizeof(e.body) - sys.getsizeof(b"") + ENTRY_OVERHEAD_BYTES
        for run in runs
        for e in run.slots
        if isinstance(e, Entry)
    )
    assert in_memory == cache.statistics().bytes_used
    assert in_memory > cache.bytes_max - 2 * STRIDE_BYTES
    # Oldest first, to within the strides of the four runs.
    assert held.index(kept[0]) > len(held) - len(kept) - 4 * STRIDE_BYTES // ENTRY_OVERHEAD_BYTES
    for run in runs:
        assert run.read(0, 9, 99) == []
        assert sum(slot is not None for slot in run.slots) >= len(run.slots) // 2


def test_one_entry_larger_than_the_cache_passes_through() -> None:
    cache = TailCache(bytes_max=1000)
    run = cache.open_run(1, 0)
    run.slots.append(bytes(5000))
    cache.confirm(run, 0)
    assert run.read(0, 1, 9999) == []
    assert cache.statistics().bytes_used == 0


def test_discarded_and_closed_runs_leave_nothing_behind() -> None:
    cache = TailCache(bytes_max=1 << 20)
    for ledger in range(1000):
        run = cache.open_run(ledger, 0)
        run.slots += [bytes(500)] * 10
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
    run = cache.open_run(1, 0)
    run.slots += [bytes(1000)] * 10
    cache.confirm(run, 9)
    each = 1000 + ENTRY_OVERHEAD_BYTES
    assert len(run.read(0, 10, 3 * each)) == 3
    assert len(run.read(4, 10, 3 * each - 1)) == 2
    assert len(run.read(9, 10, 1)) == 1
    assert run.read(10, 11, 1) == []


def filled(cache: TailCache, ledger_id: int, entries: int, needed: list[int]) -> TailRun:
    run = cache.open_run(ledger_id, 0, lambda _: needed[0])
    for entry_id in range(entries):
        run.slots.append(bytes(100))
        cache.confirm(run, entry_id)
    return run


def test_what_every_active_cursor_has_read_leaves_after_the_turn() -> None:
    cache, needed = TailCache(10_000), [0]
    run = filled(cache, 1, 10, needed)
    needed[0] = 6
    cache.turn()
    assert len(run.read(0, 10, 1 << 20)) == 10  # read in this turn: it may be wanted once more
    cache.turn()
    assert run.read(5, 10, 1 << 20) == []
    assert [entry.position.entry_id for entry in run.read(6, 10, 1 << 20)] == [6, 7, 8, 9]
    assert cache.statistics().bytes_used == 4 * (100 + ENTRY_OVERHEAD_BYTES)


def test_cursors_are_not_asked_while_the_cache_is_nearly_empty() -> None:
    asked: list[int] = []

    def first_needed(ledger_id: int) -> int:
        asked.append(ledger_id)
        return 0

    cache = TailCache(8 * 10 * (100 + ENTRY_OVERHEAD_BYTES))
    run = cache.open_run(1, 0, first_needed)
    run.slots.extend([bytes(100)] * 9)
    cache.confirm(run, 8)
    cache.turn()
    cache.turn()
    assert asked == []
    run.slots.append(bytes(100))
    cache.confirm(run, 9)
    cache.turn()
    assert asked == [1]


def test_what_nobody_reads_leaves_by_age() -> None:
    cache, needed = TailCache(), [0]
    run = filled(cache, 1, 3, needed)
    for _ in range(TURNS_OF_AGE):
        assert len(run.read(0, 3, 1 << 20)) == 3
        cache.turn()
    cache.turn()
    assert run.read(0, 3, 1 << 20) == []
    assert (cache.statistics().bytes_used, cache.statistics().strides) == (0, 0)


def test_closed_runs_that_were_read_are_forgotten_with_their_strides() -> None:
    cache = TailCache()
    for ledger_id in range(50):
        filled(cache, ledger_id, 20, [20])
        cache.close_run(ledger_id)
        cache.turn()
    for _ in range(TURNS_OF_AGE + 1):
        cache.turn()
    assert cache.statistics().ledgers == cache.statistics().strides == 0
    again = filled(cache, 99, 20, [0])
    assert len(again.read(0, 20, 1 << 20)) == 20


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
