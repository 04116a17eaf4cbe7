"""Acknowledgments against a model that is a plain set: in whatever order, both say the same."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

from geminga.managed_ledger.chain.entry import Entry
from geminga.managed_ledger.chain.ledger_chain import ChainLedger, LedgerChain
from geminga.managed_ledger.cursor.acknowledged import end_of_run
from geminga.managed_ledger.cursor.acknowledgments import Acknowledgments
from geminga.managed_ledger.cursor.batch_index import bits_of, words_of
from geminga.managed_ledger.cursor.cursor_state_format import decode, encode
from geminga.position import Position
from tests.budget import budget

BATCH = 5
STEPS = 50
PROGRAMS = budget(day=1000, night=20_000)


def chain_of(*counts: int) -> LedgerChain:
    """Ledgers 10, 20, 30... with so many entries; the last is open."""
    chain = LedgerChain()
    for i, entries in enumerate(counts, 1):
        chain.append(ChainLedger(10 * i, entries, 0, 0 if i == len(counts) else 1))
    return chain


class Program:
    """One cursor and its model, driven by numbers."""

    def __init__(self) -> None:
        self.chain = chain_of(0)
        self.cursor = Acknowledgments(self.chain, (10, -1))
        self.entries: list[Position] = []
        self.acked: set[Position] = set()
        self.partial: dict[Position, int] = {}
        self.written = encode(self.cursor.state(), 1 << 20).data
        self.written_model: tuple[set[Position], dict[Position, int]] = (set(), {})
        self.actions: list[Callable[[int, int], None]] = [
            self.publish,
            self.publish,
            self.roll,
            self.acknowledge_one,
            self.acknowledge_one,
            self.acknowledge_run,
            self.acknowledge_many,
            self.acknowledge_cumulative,
            self.acknowledge_batch_index,
            self.acknowledge_batch_index,
            self.acknowledge_nonsense,
            self.reset,
            self.persist,
            self.crash,
            self.trim,
        ]

    def step(self, action: int, a: int, b: int) -> None:
        self.actions[action % len(self.actions)](a, b)

    # -- what can happen --------------------------------------------------------------------------

    def publish(self, a: int, b: int) -> None:
        newest = self.chain.ids[-1]
        before = self.chain.counts[newest]
        self.chain.confirm(before + 1 + a % 6)
        self.entries += [Position(newest, i) for i in range(before, before + 1 + a % 6)]

    def roll(self, a: int, b: int) -> None:
        """Also over an empty ledger: ledgers that a cursor must skip."""
        self.chain.close_newest(0, 1)
        self.chain.append(ChainLedger(self.chain.ids[-1] + 1 + a % 3, 0, 0, 0))

    def acknowledge_one(self, a: int, b: int) -> None:
        if self.entries:
            self._acknowledge([self.entries[a % len(self.entries)]])

    def acknowledge_run(self, a: int, b: int) -> None:
        if self.entries:
            i = a % len(self.entries)
            self._acknowledge(self.entries[i : i + 1 + b % 10])

    def acknowledge_many(self, a: int, b: int) -> None:
        pick = random.Random(a)
        self._acknowledge(pick.choices(self.entries, k=b % 8) if self.entries else [])

    def _acknowledge(self, positions: list[Position]) -> None:
        news = set(positions) - self.acked
        assert self.cursor.acknowledge(positions) == len(news)
        self._done(news)

    def _done(self, news: set[Position]) -> None:
        self.acked |= news
        for position in news:
            self.partial.pop(position, None)

    def acknowledge_cumulative(self, a: int, b: int) -> None:
        if self.entries:
            position = self.entries[a % len(self.entries)]
            news = {p for p in self.entries if p <= position} - self.acked
            assert self.cursor.acknowledge_cumulative(position) == len(news)
            self._done(news)

    def acknowledge_batch_index(self, a: int, b: int) -> None:
        if not self.entries:
            return
        position = self.entries[a % len(self.entries)]
        remaining = b % 2**BATCH
        whole = self.cursor.acknowledge_batch_index(position, words_of(remaining), BATCH)
        if position not in self.acked:
            remaining &= self.partial.get(position, 2**BATCH - 1)
            if remaining:
                self.partial[position] = remaining
            else:
                self._done({position})
        assert whole == (position in self.acked)

    def acknowledge_nonsense(self, a: int, b: int) -> None:
        newest = self.chain.ids[-1]
        beyond = self.chain.counts[newest] + a % 3
        wrong = [(newest, beyond), (newest + 1 + b % 5, a % 5), (0, a), (newest, -1 - a), (newest, 2**40 + a)]
        if self.cursor.mark_delete < (newest, 2**40):
            assert self.cursor.acknowledge(wrong) == 0
        assert self.cursor.acknowledge_cumulative((newest, beyond)) == 0
        assert not self.cursor.acknowledge_batch_index((newest, beyond), [1], BATCH)

    def reset(self, a: int, b: int) -> None:
        """As a cursor does it: everything before a place is done, nothing after it."""
        place = self.entries[a % len(self.entries)] if self.entries else Position(0, 0)
        self.cursor.clear(self.chain.before(place))
        self.acked = {p for p in self.entries if p < place}
        self.partial = {}

    def persist(self, a: int, b: int) -> None:
        self.written = encode(self.cursor.state(), 1 << 20).data
        self.written_model = (set(self.acked), dict(self.partial))

    def crash(self, a: int, b: int) -> None:
        """Back to what was written; entries published since are there and not acknowledged."""
        self.cursor = Acknowledgments(self.chain, (0, -1))
        self.cursor.restore(decode(self.written))
        acked, partial = self.written_model
        self.acked = acked & set(self.entries)
        self.partial = {p: bits for p, bits in partial.items() if p in self.entries}

    def trim(self, a: int, b: int) -> None:
        """Sometimes more than the cursor has read: it is not durable, then."""
        if len(self.chain) > 1:
            self.chain.drop_oldest(1 + a % (len(self.chain) - 1))
            self.cursor.ledgers_dropped()
            self.entries = [p for p in self.entries if p.ledger_id in self.chain.counts]
            self.acked &= set(self.entries)
            self.partial = {p: bits for p, bits in self.partial.items() if p in self.entries}

    # -- what must hold ---------------------------------------------------------------------------

    def check(self) -> None:
        cursor, open_entries = self.cursor, [p for p in self.entries if p not in self.acked]
        assert cursor.backlog_entries() == len(open_entries)
        tail = Position(self.chain.ids[-1], self.chain.counts[self.chain.ids[-1]])
        first_open = open_entries[0] if open_entries else tail
        assert cursor.next_unacknowledged((0, 0)) == first_open
        done = [p for p in self.entries if p < first_open]
        md = cursor.mark_delete
        assert [p for p in self.entries if p <= md] == done
        assert self.chain.floor(cursor.acknowledged_up_to) == self.chain.floor(md)
        assert cursor.state().mark_delete == cursor.acknowledged_up_to
        apart = [p for p in self.entries if p in self.acked and p > first_open]
        listed = [
            Position(ledger, e) for ledger, a, b in cursor.acknowledged_ranges() for e in range(a, b + 1)
        ]
        assert listed == apart
        assert cursor.acknowledged_ranges_count() == len(cursor.acknowledged_ranges())
        assert dict(cursor.state().batches).keys() == self.partial.keys()
        for position in self.entries:
            assert cursor.is_acknowledged(position) == (position in self.acked)
            partial = self.partial.get(position)
            assert cursor.ack_set(position) == (None if partial is None else words_of(partial))
        if self.entries:
            ledger = self.entries[len(self.entries) // 2].ledger_id
            run = [Entry(p, b"") for p in self.entries if p.ledger_id == ledger]
            assert [e.position for e in cursor.unacknowledged(run)] == [
                p for p in open_entries if p[0] == ledger
            ]


@given(st.lists(st.tuples(*[st.integers(0, 2**20)] * 3), max_size=STEPS))
@settings(max_examples=150, deadline=None)
def test_cursor_agrees_with_a_set_in_programs_that_shrink(steps: list[tuple[int, int, int]]) -> None:
    program = Program()
    for step in steps:
        program.step(*step)
        program.check()


def test_cursor_agrees_with_a_set_in_many_programs() -> None:
    for seed in range(PROGRAMS):
        program, pick = Program(), random.Random(seed)
        for step in range(STEPS):
            action, a, b = (pick.randrange(2**20) for _ in range(3))
            try:
                program.step(action, a, b)
                if step % 5 == 4:
                    program.check()
            except AssertionError as error:
                raise AssertionError(f"seed {seed}") from error


def test_last_gap_moves_mark_delete_over_ledgers_in_one_go() -> None:
    cursor = Acknowledgments(chain_of(3, 0, 100_000, 2), (10, -1))
    cursor.acknowledge([(10, 1), (10, 2), (40, 0)])
    cursor.acknowledge([(30, i) for i in range(100_000)])
    assert cursor.mark_delete == (10, -1)
    assert cursor.acknowledge([(10, 0)]) == 1
    assert cursor.mark_delete == (40, 0)
    assert cursor.acknowledged_ranges() == []
    assert cursor.backlog_entries() == 1


@pytest.mark.parametrize("by", ["entry", "position", "end"])
def test_a_ledger_that_is_dropped_leaves_where_it_was_acknowledged_to(by: str) -> None:
    """So a reader can tell messages that were skipped there from a ledger that ended."""
    chain = chain_of(3, 2, 0)
    cursor = Acknowledgments(chain, (10, -1))
    if by == "entry":
        cursor.acknowledge([(10, 0), (10, 1), (10, 2), (20, 0), (20, 1)])
    else:
        cursor.acknowledge_cumulative((20, 1) if by == "position" else chain.tail)
    assert cursor.mark_delete == cursor.acknowledged_up_to == (20, 1)
    for _ in range(2):
        chain.drop_oldest(1)
        cursor.ledgers_dropped()
    assert cursor.mark_delete == (30, -1)
    assert cursor.acknowledged_up_to == (20, 1)
    again = Acknowledgments(chain, (0, -1))
    again.restore(decode(encode(cursor.state(), 1 << 20).data))
    assert (again.mark_delete, again.acknowledged_up_to) == ((30, -1), (20, 1))
    chain.confirm(1)
    again.acknowledge([(30, 0)])
    assert again.acknowledged_up_to == (30, 0)
    again.clear((30, -1))
    assert again.acknowledged_up_to == (30, -1)


def test_batch_is_acknowledged_when_its_last_message_is() -> None:
    cursor = Acknowledgments(chain_of(3), (10, -1))
    assert not cursor.acknowledge_batch_index((10, 0), [0b0111], 4)
    assert not cursor.acknowledge_batch_index((10, 0), [0b1101], 4)
    assert cursor.ack_set((10, 0)) == [0b0101]
    assert cursor.backlog_entries() == 3
    assert not cursor.acknowledge_batch_index((10, 0), [0b1100], 4)
    assert cursor.acknowledge_batch_index((10, 0), [], 4)
    assert cursor.mark_delete == (10, 0)
    assert cursor.ack_set((10, 0)) is None
    assert cursor.acknowledge_batch_index((10, 0), [0b1111], 4), "it stays acknowledged"


def test_batch_size_of_a_hostile_peer_allocates_nothing() -> None:
    cursor = Acknowledgments(chain_of(1), (10, -1))
    assert not cursor.acknowledge_batch_index((10, 0), [-1], 2**31 - 1)
    assert cursor.ack_set((10, 0)) == [-1]


def test_restored_state_is_cut_to_what_the_chain_has() -> None:
    long = Acknowledgments(chain_of(5, 50), (10, -1))
    long.acknowledge_cumulative((20, 30))
    long.acknowledge([(20, i) for i in range(33, 50)])
    written = encode(long.state(), 1 << 20).data
    short = Acknowledgments(chain_of(5, 20), (10, -1))
    short.restore(decode(written))
    assert short.mark_delete == (20, 19)
    assert short.backlog_entries() == 0
    assert short.acknowledged_ranges() == []


@given(st.sets(st.integers(0, 300), max_size=5), st.integers(0, 299))
def test_end_of_run_is_the_first_number_missing(missing: set[int], start: int) -> None:
    missing = missing - {start} | {300}
    present = BitMap(n for n in range(400) if n not in missing)
    assert end_of_run(present, start) == min(n for n in missing if n > start)


@given(st.integers(0, 2**200))
def test_words_are_java_longs_and_come_back(bits: int) -> None:
    words = words_of(bits)
    assert all(-(2**63) <= word < 2**63 for word in words)
    assert bits_of(words) == bits
    assert bits_of([word % 2**64 for word in words]) == bits


@pytest.mark.parametrize(
    ("words", "bits"), [([], 0), ([1], 1), ([-1], 2**64 - 1), ([0, 1], 2**64), ([-(2**63)], 2**63)]
)
def test_words_in_the_wires_form(words: list[Any], bits: int) -> None:
    assert bits_of(words) == bits
    assert words_of(bits) == words
