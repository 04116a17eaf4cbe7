"""What a topic's record becomes when the bookie's files decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from geminga.managed_ledger.restore import Missing, StoredLedgers, merged, topic_of, without_ledgers
from geminga.metadata.records import LedgerInfo, ManagedLedgerRecord


def stored(entries: Mapping[int, int]) -> StoredLedgers:
    """A bookie whose ledgers have no holes; an entry has ten bytes."""

    def missing(ledger_id: int, promised: int) -> Sequence[tuple[int, int]]:
        held = entries.get(ledger_id, 0)
        return [(held, promised - 1)] if held < promised else []

    return StoredLedgers(
        lambda ledger_id: entries.get(ledger_id, 0),
        lambda ledger_id: entries.get(ledger_id, 0) - 1,
        lambda ledger_id: 10 * entries[ledger_id],
        missing,
    )


def closed(ledger_id: int, entries: int) -> LedgerInfo:
    return LedgerInfo(ledger_id=ledger_id, entries=entries, size_bytes=10 * entries, closed_ms=5)


def test_ledgers_come_back_in_order_and_what_was_open_is_closed() -> None:
    record = ManagedLedgerRecord(ledgers=[closed(2, 50), LedgerInfo(ledger_id=5)], created_ms=1)
    result = merged(record, [7, 3], stored({2: 50, 3: 20, 5: 30, 7: 1}), now_ms=9)
    assert [
        (info.ledger_id, info.entries, info.size_bytes, info.closed_ms) for info in result.record.ledgers
    ] == [
        (2, 50, 500, 5),
        (3, 20, 200, 9),
        (5, 30, 300, 9),
        (7, 1, 10, 9),
    ]
    assert (result.dropped, result.missing) == ([], [])


def test_what_is_not_there_goes_and_is_named() -> None:
    record = ManagedLedgerRecord(ledgers=[closed(2, 50), closed(3, 50), LedgerInfo(ledger_id=4)])
    result = merged(record, [], stored({3: 48}), now_ms=9)
    assert [(info.ledger_id, info.entries) for info in result.record.ledgers] == [(3, 48), (4, 0)]
    assert result.missing == [Missing(2, 0, 49), Missing(3, 48, 49)]
    assert str(result.missing[1]) == "3:48 to 3:49"
    assert result.dropped == [2]


def test_an_open_ledger_whose_entries_are_all_gone_goes() -> None:
    gone = StoredLedgers(lambda _: 0, lambda _: 39, lambda _: 0, lambda _, promised: [(0, promised - 1)])
    result = merged(ManagedLedgerRecord(ledgers=[LedgerInfo(ledger_id=4)]), [], gone, now_ms=9)
    assert (result.record.ledgers, result.dropped, result.missing) == ([], [4], [Missing(4, 0, 39)])


def test_restoring_again_changes_nothing() -> None:
    bookie = stored({2: 50, 3: 20})
    once = merged(ManagedLedgerRecord(ledgers=[closed(2, 60)]), [3], bookie, now_ms=9).record
    assert merged(once, [], bookie, now_ms=11) == (once, [], [], "")


def test_a_terminated_topic_keeps_its_ledgers() -> None:
    record = ManagedLedgerRecord(ledgers=[closed(2, 50)], terminated=(2, 49), created_ms=1)
    result = merged(record, [], stored({}), now_ms=9)
    assert result.record == record
    assert result.missing == [Missing(2, 0, 49)]


def test_a_topic_is_known_by_its_path_or_its_name() -> None:
    path = "/managed-ledgers/public/default/persistent/a%2Fb"
    assert str(topic_of("persistent://public/default/orders")) == "persistent://public/default/orders"
    assert topic_of(path.replace("%2F", "-")) == topic_of("persistent://public/default/a-b")
    assert topic_of("orders") is None
    assert topic_of("") is None


def test_properties_that_name_a_ledger_that_is_gone_go() -> None:
    properties = {"#pulsar.internal.delayed.bucket_1_2": 7, "#pulsar.internal.delayed.bucket_3_4": 8, "x": 7}
    assert without_ledgers(properties, {7}) == {"#pulsar.internal.delayed.bucket_3_4": 8, "x": 7}
