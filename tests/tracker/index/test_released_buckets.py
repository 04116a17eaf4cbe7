"""When a bucket is released, and that looking for such buckets costs nothing while there is none."""

from __future__ import annotations

import pytest

from geminga.errors import CorruptData
from geminga.position import Position
from geminga.tracker.format import bucket_format
from geminga.tracker.format.bucket_format import decode_directory, encode_bucket
from geminga.tracker.format.stored_bucket import StoredBucket
from geminga.tracker.index.index import DelayedIndex, IndexSettings
from geminga.tracker.index.membership import Membership
from geminga.tracker.index.part import Frozen
from geminga.tracker.index.view import View
from tests.tracker.taking import take


class HandClock:
    ms = 0

    def now_ms(self) -> int:
        return self.ms

    async def sleep_until_ms(self, due_ms: int) -> None:
        raise NotImplementedError

    def monotonic_s(self) -> float:
        raise NotImplementedError


class Sealed:
    """Three ledgers of four messages, a bucket each, of two segments; due from 100 s on."""

    def __init__(self, *, is_shared: bool = False) -> None:
        self.clock = HandClock()
        self.frozen: list[Frozen] = []
        settings = IndexSettings(tick_ms=1, strict=True, exact=True, indexes_min=4, is_shared=is_shared)
        self.index = DelayedIndex(self.clock, settings, seal=self.frozen.append)
        self.view: View = View(self.index)
        for ledger_id in (1, 2, 3):
            for entry_id in range(4):
                self.view.add(Position(ledger_id, entry_id), 100_000 * ledger_id + entry_id)
        self.index.feed.freeze_all()
        self.segments: dict[StoredBucket, list[bytes]] = {}
        self.buckets: list[StoredBucket] = []
        for number, frozen in enumerate(self.frozen):
            encoded = encode_bucket(frozen.start_ledger, frozen.end_ledger, frozen.rows, 300_000, 2)
            bucket = StoredBucket(500 + number, decode_directory(encoded.directory), 0)
            self.segments[bucket] = list(encoded.segments)
            self.buckets.append(bucket)
            self.index.sealed(frozen, bucket)
        assert len(self.buckets) == 3
        assert not self.index.buckets.released()

    def load(self) -> None:
        for bucket, number in self.index.wanted(self.clock.ms):
            self.index.segment_loaded(bucket, number, self.segments[bucket][number])


@pytest.fixture
def sealed() -> Sealed:
    return Sealed()


def test_a_bucket_is_released_with_its_last_row(sealed: Sealed) -> None:
    sealed.clock.ms = 150_000
    sealed.load()
    sealed.load()
    assert take(sealed.view, 10) == [(1, 0), (1, 1), (1, 2), (1, 3)]
    assert sealed.index.buckets.released() == [sealed.buckets[0]]
    assert not sealed.index.buckets.released()


def test_a_bucket_is_released_when_nobody_waits_for_its_rows(sealed: Sealed) -> None:
    sealed.view.pass_positions([(2, 0), (2, 1), (2, 2)])
    assert not sealed.index.buckets.released()
    sealed.view.pass_positions([(2, 3)])
    assert sealed.index.buckets.released() == [sealed.buckets[1]]
    sealed.view.mark_delete_moved((1, 9))
    assert sealed.index.buckets.released() == [sealed.buckets[0]]
    sealed.index.clear()
    assert sealed.index.buckets.released() == [sealed.buckets[2]]


def test_nothing_is_looked_through_for_a_segment_that_was_loaded(
    sealed: Sealed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of buckets, each with segments to load: every load asks what is released."""
    looks = []
    count = Membership.count_between

    def count_between(members: Membership, first_ledger: int, last_ledger: int) -> int:
        looks.append(first_ledger)
        return count(members, first_ledger, last_ledger)

    monkeypatch.setattr(Membership, "count_between", count_between)
    sealed.clock.ms = 100_001
    sealed.load()
    assert take(sealed.view, 10) == [(1, 0), (1, 1)]
    sealed.load()
    assert not sealed.index.buckets.released()
    assert not looks


def test_a_segment_that_is_loaded_ahead_is_decoded_once(
    sealed: Sealed, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[bytes] = []
    decode = bucket_format.decode_segment
    monkeypatch.setattr(bucket_format, "decode_segment", lambda entry: decoded.append(entry) or decode(entry))
    sealed.clock.ms = 50_000
    sealed.load()
    sealed.load()
    assert len(sealed.index.buckets.items()[0][1].loaded) == 2
    assert not decoded
    sealed.clock.ms = 100_010
    assert take(sealed.view, 10) == [(1, 0), (1, 1), (1, 2), (1, 3)]
    assert decoded == sealed.segments[sealed.buckets[0]]


def test_a_segment_whose_checksum_is_right_and_makes_no_sense_is_told_when_it_is_loaded_again(
    sealed: Sealed,
) -> None:
    [first, *_] = sealed.buckets
    good = sealed.segments[first][1]
    body = bytearray(bucket_format.unframed(good, bucket_format.SEGMENT)[1])
    body[-3:] = b"\xff\xff\xff"
    sealed.segments[first][1] = bucket_format.framed(bucket_format.SEGMENT, bytes(body))
    sealed.clock.ms = 50_000
    sealed.load()
    sealed.load()
    sealed.clock.ms = 100_010
    assert take(sealed.view, 10) == [(1, 0), (1, 1)]
    with pytest.raises(CorruptData):
        sealed.load()
    sealed.segments[first][1] = good
    sealed.load()
    assert take(sealed.view, 10) == [(1, 2), (1, 3)]


def test_another_segment_than_was_asked_for_is_refused_without_decoding(sealed: Sealed) -> None:
    [first, *_] = sealed.buckets
    sealed.clock.ms = 50_000
    with pytest.raises(CorruptData):
        sealed.index.segment_loaded(first, 0, sealed.segments[first][1])
    sealed.load()
    assert sealed.index.buckets.items()[0][1].is_ready()


def test_a_lost_bucket_takes_along_what_was_passed_of_it() -> None:
    """Else a view of a shared index counts below what waits for it, and passes a message that comes back."""
    sealed = Sealed(is_shared=True)
    index, view, [first, *_] = sealed.index, sealed.view, sealed.buckets
    other = View(index, is_acknowledged=lambda position: False)
    view.pass_positions([(1, 0), (1, 1), (2, 0)])
    assert (len(view), len(other)) == (9, 12)
    assert index.bucket_lost(first) == (1, 1)
    assert (len(view), len(other), len(index)) == (7, 8, 8)
    # Read again: not acknowledged any more here, as after a seek of one subscription.
    for entry_id in range(4):
        view.add(Position(1, entry_id), 100_000 + entry_id)
    assert (len(view), len(other)) == (11, 12)
    sealed.clock.ms = 150_000
    assert take(view, 10) == [(1, entry_id) for entry_id in range(4)]
    assert take(other, 10) == [(1, entry_id) for entry_id in range(4)]
