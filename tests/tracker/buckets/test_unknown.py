"""The ledgers of which an index that is being read does not know yet what waits in them."""

from __future__ import annotations

from geminga.tracker.buckets.unknown import UnknownLedgers


def unknown_among(unknown: UnknownLedgers, ledgers: range) -> list[int]:
    return [ledger_id for ledger_id in ledgers if unknown.has(ledger_id)]


def test_a_ledger_is_unknown_until_all_buckets_that_may_have_it_are_settled() -> None:
    unknown = UnknownLedgers()
    unknown.expect({"a": (3, 5), "b": (5, 7)})
    assert unknown_among(unknown, range(10)) == [3, 4, 5, 6, 7]
    assert unknown.settle("a") == (3, 5)
    assert unknown_among(unknown, range(10)) == [5, 6, 7]
    assert unknown.settle("b") == (5, 7)
    assert not unknown
    assert unknown_among(unknown, range(10)) == []


def test_a_long_range_behind_short_ones() -> None:
    unknown = UnknownLedgers()
    unknown.expect({"long": (1, 9), "short": (2, 3)})
    assert unknown_among(unknown, range(12)) == list(range(1, 10))
