"""What the index makes of streams of positions: each is cut into buckets of the usual size, whatever comes in
between, and memory does not grow with what is read again.
"""

from __future__ import annotations

import random
from itertools import pairwise

from geminga.position import Position
from geminga.tracker.buckets.bucket_settings import BucketSettings
from geminga.tracker.format.bucket_format import decode_directory, encode_bucket
from geminga.tracker.format.rows import ENTRY_MASK, position_of
from geminga.tracker.format.stored_bucket import StoredBucket
from geminga.tracker.index.feed import RUNT_PARTS, TAILS_MAX
from geminga.tracker.index.index import DelayedIndex, IndexSettings
from geminga.tracker.index.part import NO_CODE, Frozen
from geminga.tracker.index.view import View
from tests.tracker.taking import take

BUCKET = 500
FAR_MS = 1_000_000_000


class HandClock:
    ms = 0

    def now_ms(self) -> int:
        return self.ms

    async def sleep_until_ms(self, due_ms: int) -> None:
        raise NotImplementedError

    def monotonic_s(self) -> float:
        raise NotImplementedError


class Sealed:
    """An index whose frozen parts are sealed when `seal` is called; which buckets there are."""

    def __init__(self, indexes_min: int = BUCKET) -> None:
        self.clock = HandClock()
        self.frozen: list[Frozen] = []
        settings = IndexSettings(tick_ms=1, strict=True, exact=True, indexes_min=indexes_min)
        self.index = DelayedIndex(self.clock, settings, self.frozen.append)
        self.rereads: list[tuple[int, int]] = []
        self.view = View(self.index, reread=lambda first, last: self.rereads.append((first, last)))
        self.entries: dict[StoredBucket, list[bytes]] = {}
        self._ledger_ids = iter(range(10_000, 20_000))

    def add(self, ledger_id: int, first: int, last: int, batch: int = 100) -> None:
        """Entries first to last, both included, each with a time of its own."""
        for start in range(first, last + 1, batch):
            entry_ids = range(start, min(start + batch, last + 1))
            assert self.view.add_many(ledger_id, entry_ids, [due_ms(ledger_id, e) for e in entry_ids]) == ()

    def seal(self) -> None:
        while self.frozen:
            frozen = self.frozen.pop(0)
            rows, defaults = frozen.rows, BucketSettings()
            encoded = encode_bucket(
                frozen.start_ledger, frozen.end_ledger, rows, defaults.segment_span_ms, 5000
            )
            stored = StoredBucket(next(self._ledger_ids), decode_directory(encoded.directory), 0)
            self.entries[stored] = list(encoded.segments)
            self.index.sealed(frozen, stored)

    def ranges(self) -> list[tuple[tuple[int, int], tuple[int, int], int]]:
        """First and last position of each bucket, and its rows."""
        return [
            (position_of(stored.first_code), position_of(stored.last_code), stored.directory.rows)
            for stored, _ in self.index.buckets.items()
        ]

    def lose(self, *places: int) -> None:
        for stored in [self.index.buckets.items()[place][0] for place in places]:
            self.index.bucket_lost(stored)

    def in_memory(self) -> int:
        feed = self.index.feed
        return sum(tail.rows() for tail in feed.tails) + feed.shared.rows()


def due_ms(ledger_id: int, entry_id: int) -> int:
    return FAR_MS + (ledger_id * 7919 + entry_id * 104_729) % 1_000_003


def test_one_ledger_becomes_buckets_without_a_next_message() -> None:
    sealed = Sealed()
    sealed.add(7, 0, 1999)
    sealed.seal()
    assert sealed.ranges() == [((7, n), (7, n + 499), 500) for n in range(0, 2000, 500)]
    assert sealed.in_memory() == 0
    assert len(sealed.view) == 2000


def test_a_lost_bucket_comes_back_as_one_while_the_topic_goes_on() -> None:
    sealed = Sealed()
    sealed.add(7, 0, 2149)
    sealed.seal()
    sealed.lose(1)
    assert sealed.rereads == [(7, 7)]
    assert len(sealed.view) == 1650
    sealed.add(7, 500, 699)
    sealed.add(7, 2150, 2199)
    sealed.add(7, 700, 999)
    assert sealed.index.is_behind
    assert not sealed.frozen
    sealed.index.feed.caught_up()
    sealed.seal()
    assert sealed.ranges() == [((7, n), (7, n + 499), 500) for n in range(0, 2000, 500)]
    assert sealed.in_memory() == 200
    assert not sealed.index.is_behind
    assert len(sealed.view) == 2200


def test_all_buckets_lost_come_back_as_buckets_of_the_usual_size() -> None:
    """After a leap to the end of the topic, as at a start without a bucket."""
    sealed = Sealed()
    sealed.add(2, 0, 99)
    sealed.index.leap((40, 0))
    sealed.add(40, 0, 49)
    for ledger_id in range(2, 40):
        sealed.add(ledger_id, 100 if ledger_id == 2 else 0, 199)
        sealed.add(40, 10 * ledger_id + 30, 10 * ledger_id + 39)
        sealed.seal()
        assert sealed.in_memory() < 2 * BUCKET + BUCKET // 10
    sealed.index.feed.caught_up()
    sealed.seal()
    sizes = [rows for _, _, rows in sealed.ranges()]
    assert sum(sizes) + sealed.in_memory() == len(sealed.view) == 38 * 200 + 50 + 38 * 10
    assert all(BUCKET <= rows <= BUCKET + BUCKET // 10 + 50 for rows in sizes[:-1])
    assert sealed.in_memory() < BUCKET
    spans = [(first, last) for first, last, _ in sealed.ranges()]
    assert all(before[1] < after[0] for before, after in pairwise(spans))


def test_what_lies_between_buckets_is_sealed_apart_and_spans_nothing_else() -> None:
    sealed = Sealed()
    sealed.add(7, 0, 2999)
    sealed.seal()
    sealed.lose(0, 2, 4)
    for first in (0, 1000, 2000):
        sealed.add(7, first, first + 499)
    sealed.index.feed.caught_up()
    sealed.seal()
    assert sealed.ranges() == [((7, n), (7, n + 499), 500) for n in range(0, 3000, 500)]


def test_a_runt_joins_the_end_of_the_topic() -> None:
    sealed = Sealed()
    sealed.add(7, 0, 999)
    sealed.seal()
    sealed.lose(0)
    runt = BUCKET // RUNT_PARTS - 1
    sealed.add(7, 0, runt - 1)
    sealed.index.feed.caught_up()
    assert not sealed.frozen
    assert [tail.rows() for tail in sealed.index.feed.tails] == [runt]
    sealed.add(7, 1000, 1000 + BUCKET)
    sealed.seal()
    assert sealed.ranges()[0] == ((7, 0), (7, 1499 - runt), 500)
    assert len(sealed.view) == 500 + runt + BUCKET + 1


def test_what_is_published_while_a_backlog_is_read_lies_apart_from_it() -> None:
    """A shared index is opened: it gets what is published at once, before the first of the backlog."""
    sealed = Sealed()
    sealed.index.leap((7, 700))
    sealed.add(7, 0, 99)
    sealed.add(7, 700, 749)
    sealed.add(7, 100, 649)
    sealed.add(7, 750, 799)
    sealed.add(7, 650, 699)
    sealed.seal()
    assert sealed.ranges() == [((7, 0), (7, 549), 550)]
    sealed.index.feed.caught_up()
    sealed.seal()
    assert sealed.ranges() == [((7, 0), (7, 549), 550)]
    assert [(tail.rows(), tail.first_code & ENTRY_MASK) for tail in sealed.index.feed.tails] == [(250, 550)]


def test_streams_that_meet_become_one_bucket() -> None:
    """A backlog that is read from two places on, as while an index is opened beside the reading."""
    sealed = Sealed()
    sealed.add(7, 0, 99)
    sealed.index.leap((7, 300))
    sealed.add(7, 300, 349)
    sealed.index.leap((7, 2000))
    sealed.add(7, 2000, 2019)
    sealed.add(7, 100, 299)
    sealed.add(7, 350, 499)
    sealed.index.feed.caught_up()
    sealed.seal()
    assert sealed.ranges() == [((7, 0), (7, 499), 500)]
    assert sealed.in_memory() == 20


def test_more_streams_than_there_are_tails_lose_nothing() -> None:
    sealed = Sealed()
    streams = {ledger_id: iter(range(0, 3000, 50)) for ledger_id in range(10, 10 + 2 * TAILS_MAX)}
    chance = random.Random(3)
    count = 0
    while streams:
        ledger_id = chance.choice(sorted(streams))
        first = next(streams[ledger_id], None)
        if first is None:
            del streams[ledger_id]
        else:
            sealed.add(ledger_id, first, first + 49, batch=50)
            count += 50
        if count % 1000 == 0:
            sealed.seal()
        assert len(sealed.index.feed.tails) <= TAILS_MAX
        assert sealed.in_memory() <= TAILS_MAX * (BUCKET + BUCKET // 10)
    sealed.index.feed.caught_up()
    sealed.seal()
    assert len(sealed.view) == count
    rows = sum(rows for _, _, rows in sealed.ranges())
    assert rows + sealed.in_memory() == count
    for first, last, _ in sealed.ranges():
        assert first <= last <= (10 + 2 * TAILS_MAX, ENTRY_MASK)


def test_positions_one_by_one_in_any_order_come_once() -> None:
    for seed in range(20):
        sealed = Sealed(indexes_min=40)
        chance = random.Random(seed)
        places = [(ledger_id, entry_id) for ledger_id in range(3, 8) for entry_id in range(60)]
        places_in_order = list(places)
        for n in range(0, len(places), 30):
            part = places[n : n + 60]
            chance.shuffle(part)
            places[n : n + 60] = part
        for n, (ledger_id, entry_id) in enumerate(places):
            assert sealed.view.add(Position(ledger_id, entry_id), due_ms(ledger_id, entry_id))
            if chance.random() < 0.02:
                sealed.index.leap((chance.randrange(3, 8), chance.randrange(60)))
            if chance.random() < 0.02:
                sealed.index.feed.caught_up()
            if chance.random() < 0.1:
                sealed.seal()
            if chance.random() < 0.01 and len(sealed.index.buckets.items()) > 1:
                lost = chance.choice(sealed.index.buckets.items())[0]
                sealed.index.bucket_lost(lost)
                for before in places[: n + 1]:
                    if not sealed.view.contains(before):
                        assert sealed.view.add(Position(*before), due_ms(*before))
        sealed.index.feed.freeze_all()
        sealed.seal()
        assert sealed.in_memory() == 0
        assert [tail.first_code for tail in sealed.index.feed.tails] == [NO_CODE]
        assert len(sealed.view) == len(places)
        sealed.clock.ms = 2 * FAR_MS
        taken: list[tuple[int, int]] = []
        while len(sealed.view):
            for stored, number in sealed.index.wanted(sealed.clock.ms):
                sealed.index.segment_loaded(stored, number, sealed.entries[stored][number])
            taken += take(sealed.view, 1)
        assert sorted(taken) == places_in_order


def test_a_stream_that_ran_past_the_end_is_sealed_whole() -> None:
    """What the end had was acknowledged, and is read once more with what lay before it."""
    sealed = Sealed()
    sealed.add(7, 0, 9)
    sealed.index.leap((7, 20))
    sealed.add(7, 20, 24)
    sealed.view.pass_positions([Position(7, entry_id) for entry_id in range(20, 25)])
    for entry_id in range(10, 40):
        assert sealed.view.add(Position(7, entry_id), due_ms(7, entry_id))
    sealed.index.feed.caught_up()
    assert len(sealed.index.feed.tails) == 1
    sealed.index.feed.freeze_all()
    sealed.seal()
    assert sealed.ranges() == [((7, 0), (7, 39), 40)]
    assert sealed.in_memory() == 0


def test_a_leap_over_an_end_that_was_overtaken_keeps_what_overtook_it() -> None:
    """The end is empty yet, and what was read beside it has come further than where it was to begin."""
    sealed = Sealed()
    sealed.add(7, 0, 9)
    sealed.index.leap((7, 20))
    for entry_id in range(10, 30):
        assert sealed.view.add(Position(7, entry_id), due_ms(7, entry_id))
    sealed.index.leap((7, 25))
    assert sealed.in_memory() == len(sealed.view) == 30
    sealed.index.feed.freeze_all()
    sealed.seal()
    assert sealed.ranges() == [((7, 0), (7, 29), 30)]
