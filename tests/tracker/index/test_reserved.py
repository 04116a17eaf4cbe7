"""Positions for which buckets are about to come: they stay in memory, what is beside them goes on as ever."""

from __future__ import annotations

from geminga.tracker.format.rows import code_of
from geminga.tracker.index.adopting import cut_off, replaced_by, reserve, unreserve
from geminga.tracker.index.part import NO_CODE
from tests.tracker.index.test_tails import Sealed

LEDGER = 5


def span(first: int, last: int) -> tuple[int, int]:
    return code_of(LEDGER, first), code_of(LEDGER, last)


def test_what_is_reserved_of_a_ledger_stays_out_of_buckets() -> None:
    sealed = Sealed(indexes_min=10_000)
    index, feed = sealed.index, sealed.index.feed
    sealed.add(LEDGER, 0, 799)
    reserve(index, [span(3000, 3999), span(1000, 1999)])
    sealed.add(LEDGER, 800, 2499)
    (tail,) = feed.tails
    assert (feed.shared.rows(), tail.rows()) == (1000, 1500)
    sealed.add(LEDGER, 2500, 3499)
    assert (feed.shared.rows(), tail.rows()) == (1500, 2000)
    unreserve(index, [span(1000, 1999), span(3000, 3999)])
    sealed.add(LEDGER, 3500, 3999)
    assert (feed.shared.rows(), tail.rows()) == (1500, 2500)
    assert len(index) == 4000


def test_what_is_reserved_has_borders() -> None:
    buckets = Sealed().index.buckets
    assert buckets.border_after(0) == NO_CODE
    buckets.reserve([(10, 19), (30, 30)])
    buckets.reserve([(20, 25)])
    assert [code for code in range(40) if buckets.is_reserved(code)] == [*range(10, 26), 30]
    assert [buckets.border_after(code) for code in (0, 9, 10, 19, 20, 25, 26, 30, 31)] == [
        *(10, 10, 20, 20, 26, 26, 30, 31),
        NO_CODE,
    ]
    buckets.unreserve([(10, 19), (20, 25), (30, 30)])
    assert not buckets.is_reserved(15)


def test_only_what_overlaps_is_cut_off_and_replaced() -> None:
    sealed = Sealed(indexes_min=100)
    index = sealed.index
    sealed.add(LEDGER, 0, 349)
    sealed.seal()
    first, second, third = [stored for stored, _ in index.buckets.items()]
    assert replaced_by(index, [span(100, 199)]) == [second]
    assert replaced_by(index, [span(199, 200), span(0, 0)]) == [first, second, third]
    assert replaced_by(index, [span(300, 5000)]) == []
    (tail,) = index.feed.tails
    assert cut_off(index, [span(0, 299), span(350, 400)])
    assert (tail.rows(), sealed.frozen) == (50, [])
    assert not cut_off(index, [span(349, 349)])
    sealed.seal()
    assert cut_off(index, [span(349, 349)])
    assert replaced_by(index, [span(349, 349)]) == [index.buckets.items()[-1][0]]
