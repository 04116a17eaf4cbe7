"""What is pending at a consumer, packed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from geminga.broker.dispatch.pending_acks import SIZE_BITS, SIZE_MASK, PendingAcks, pack
from geminga.position import Position


def filled(*entries: tuple[int, int, int, int]) -> PendingAcks:
    pending = PendingAcks()
    for ledger_id, entry_id, size, slot in entries:
        pending.of_ledger(ledger_id)[entry_id] = pack(size, slot)
    return pending


def test_an_unbatched_entry_of_a_shared_subscription_is_the_number_one() -> None:
    assert pack(1, 0) == 1


@given(st.integers(1, 2**31 - 1), st.integers(0, 65535))
def test_size_and_slot_come_back(size: int, slot: int) -> None:
    packed = pack(size, slot)
    assert (packed & SIZE_MASK, packed >> SIZE_BITS) == (size, slot)


def test_taking_out() -> None:
    pending = filled((2, 0, 1, 9), (1, 5, 3, 7), (1, 4, 1, 7))
    assert len(pending) == 3
    assert (pending.get(1, 5), pending.get(1, 6), pending.get(3, 0)) == (pack(3, 7), 0, 0)
    assert sorted(pending.slots()) == [7, 7, 9]
    assert pending.pop(1, 5) == pack(3, 7)
    assert pending.pop(1, 5) == pending.pop(8, 8) == 0
    assert list(pending) == [(Position(1, 4), pack(1, 7)), (Position(2, 0), pack(1, 9))]
    assert pending.pop(1, 4)
    assert list(pending.ledgers) == [2], "a ledger with nothing pending takes no room"


def test_taking_everything_up_to_a_position() -> None:
    pending = filled((2, 0, 1, 0), (2, 1, 1, 0), (1, 5, 1, 0), (3, 0, 1, 0))
    assert [p for p, _ in pending.take_up_to(Position(2, 0))] == [(1, 5), (2, 0)]
    assert [p for p, _ in pending.take_all()] == [(2, 1), (3, 0)]
    assert len(pending) == 0


def test_taking_all_out_as_codes_where_there_are_no_slots() -> None:
    pending = filled((2**31, 2**31, 3, 0), (2**31, 0, 1, 0), (1, 7, 1, 0), (5, 1, 2, 9), (5, 0, 1, 0))
    assert pending.entry_ids() == [(1, [7]), (5, [0, 1]), (2**31, [0, 2**31])]
    codes, others = pending.take_codes()
    assert codes.tolist() == [1 << 32 | 7, 2**31 << 32, 2**31 << 32 | 2**31]
    assert others == [(Position(5, 0), 0), (Position(5, 1), 9)]
    assert not pending.ledgers
