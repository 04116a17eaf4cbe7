"""Arithmetic over the positions of a chain, against a chain that is a plain list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from geminga.managed_ledger.chain.ledger_chain import ChainLedger, LedgerChain
from geminga.position import EARLIEST, LATEST, Position


def chain_of(counts: list[int]) -> LedgerChain:
    """Ledgers 3, 5, 7... with so many entries: there is an id missing before each."""
    chain = LedgerChain()
    for i, entries in enumerate(counts):
        chain.append(ChainLedger(3 + 2 * i, entries, 100 * entries, 0 if i == len(counts) - 1 else 9))
    return chain


counts_and_drop = st.lists(st.integers(0, 4), min_size=1, max_size=6).flatmap(
    lambda counts: st.tuples(st.just(counts), st.integers(0, len(counts) - 1))
)
positions = st.tuples(st.integers(0, 16), st.integers(-1, 6))


@given(counts_and_drop, positions, positions)
def test_every_answer_is_that_of_a_list(
    made: tuple[list[int], int], a: tuple[int, int], b: tuple[int, int]
) -> None:
    counts, dropped = made
    chain = chain_of(counts)
    chain.drop_oldest(dropped)
    ids = [3 + 2 * i for i in range(dropped, len(counts))]
    entries = [Position(3 + 2 * i, e) for i in range(dropped, len(counts)) for e in range(counts[i])]
    end = Position(ids[-1], counts[-1])

    assert chain.entries == len(entries)
    assert chain.last_entry() == (entries[-1] if entries else None)
    assert chain.tail == (ids[-1], counts[-1] - 1)
    assert chain.ceiling(a) == next((p for p in entries if p >= a), end)
    assert chain.previous(a) == max((p for p in entries if p < a), default=Position(ids[0], -1))
    assert chain.count_between(a, b) == len([p for p in entries if a < p <= b])
    for i, position in enumerate(entries, 1):
        ordinal = sum(counts[:dropped]) + i
        assert chain.at_ordinal(ordinal) == position
        assert chain.ordinal(position) == ordinal

    floor = chain.floor(a)
    places = [Position(i, -1) for i in ids] + entries
    assert floor in places
    assert [p for p in entries if p <= floor] == [p for p in entries if p <= a]
    if a in places:
        assert floor == a
    before = chain.before(a)
    assert [p for p in entries if p <= before] == [p for p in entries if p < a]


def test_ends_of_the_world() -> None:
    chain = chain_of([0, 2, 0, 3])
    assert chain.ceiling(EARLIEST) == (5, 0)
    assert chain.ceiling(LATEST) == (9, 3)
    assert chain.floor(EARLIEST) == (3, -1)
    assert chain.floor(LATEST) == (9, 2)
    assert chain.before((5, 0)) == (5, -1)
    assert chain.closed_bytes == 500
    assert [ledger.ledger_id for ledger in chain] == [3, 5, 7, 9]
