"""The parts of an index: whatever happens to it, each position that waits for a view is in one of them."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from geminga.position import Position
from geminga.tracker.format.bucket_format import decode_directory, encode_bucket
from geminga.tracker.format.rows import Rows
from geminga.tracker.format.stored_bucket import StoredBucket
from geminga.tracker.index import eyes
from geminga.tracker.index.composition import IndexPart, parts_of, range_text, sealed_parts
from geminga.tracker.index.index import DelayedIndex, IndexSettings
from geminga.tracker.index.part import Frozen
from geminga.tracker.index.view import View
from tests.tracker.index.test_eyes import HandClock, slices
from tests.tracker.taking import take


class Sealing:
    """An index whose frozen parts become buckets when it is told so."""

    def __init__(self, *, is_shared: bool = False, indexes_min: int = 20) -> None:
        self.clock = HandClock()
        self.frozen: list[Frozen] = []
        settings = IndexSettings(
            tick_ms=1, strict=True, exact=True, indexes_min=indexes_min, is_shared=is_shared
        )
        self.index = DelayedIndex(self.clock, settings, self.frozen.append)
        self.entries: dict[StoredBucket, list[bytes]] = {}

    def seal(self, count: int = 1) -> None:
        for _ in range(count):
            frozen = self.frozen.pop(0)
            first, last = frozen.start_ledger, frozen.end_ledger
            encoded = encode_bucket(first, last, frozen.rows, 300_000, 5)
            stored = StoredBucket(1000 + len(self.entries), decode_directory(encoded.directory), 1)
            self.entries[stored] = encoded.segments
            self.index.sealed(frozen, stored)

    def load(self) -> None:
        for stored, number in self.index.wanted(self.clock.now_ms()):
            self.index.segment_loaded(stored, number, self.entries[stored][number])


def parts(view: View) -> list[IndexPart]:
    looked, found = slices(parts_of(view))
    assert max(looked, default=0) <= 2 * eyes.SLICE_ROWS_MAX
    assert sum(part.positions for part in found) == len(view)
    return list(found)


def counts(view: View) -> dict[str, int]:
    found: Counter[str] = Counter()
    for part in parts(view):
        found[part.state] += part.positions
    return dict(found)


def test_each_state_that_rows_go_through() -> None:
    world = Sealing()
    view = View(world.index)
    for entry_id in range(30):
        view.add(Position(1, entry_id), 100_000 + 10_000 * entry_id)
    [growing] = [part for part in parts(view) if part.state == "growing"]
    assert counts(view) == {"frozen": 20, "growing": 10} or counts(view) == {"growing": 30}
    assert (growing.last_ms, growing.rows_on_disk, growing.rows_in_memory) == (390_000, 0, growing.positions)
    world.index.feed.freeze_all()
    assert counts(view) == {"frozen": 30}
    world.seal(len(world.frozen))
    assert counts(view) == {"sealed": 30}
    assert {part.rows_on_disk for part in parts(view)} == {part.rows for part in parts(view)}
    world.clock.ms = 50_000
    assert counts(view)["loading"] > 0, "a segment is due within a minute"
    world.load()
    assert counts(view) == {"sealed": 30}
    assert sum(part.rows_in_memory for part in parts(view)) > 0
    assert world.index.reschedule((1, 7), 10**9)
    assert counts(view) == {"sealed": 29, "memory": 1}
    world.clock.ms = 100_000
    assert view.has_due()
    world.load()
    assert counts(view) == {"due": 1, "sealed": 28, "memory": 1}
    assert parts(view)[0].state == "due"
    assert take(view, 10) == [(1, 0)]
    assert counts(view) == {"sealed": 28, "memory": 1}


def test_what_one_view_has_passed_counts_for_the_other_only() -> None:
    world = Sealing(is_shared=True)
    view, other = View(world.index), View(world.index)
    for entry_id in range(50):
        view.add(Position(1, entry_id), 10**6 + entry_id)
    world.index.feed.freeze_all()
    world.seal(len(world.frozen))
    for entry_id in range(50, 60):
        view.add(Position(1, entry_id), 10**6 + entry_id)
    other.pass_positions([(1, entry_id) for entry_id in range(45, 55)])
    assert counts(view) == {"sealed": 50, "growing": 10}
    assert counts(other) == {"sealed": 45, "growing": 5}
    other.mark_delete_moved(Position(1, 57))
    assert counts(other) == {"sealed": 0, "growing": 2}
    assert counts(view) == {"sealed": 50, "growing": 10}


def test_what_one_view_reads_of_a_shared_index_is_not_due_to_one_that_has_had_it() -> None:
    world = Sealing(is_shared=True)
    view = View(world.index)
    other = View(world.index, is_acknowledged=lambda position: position[1] < 10)
    view.add_many(1, range(50), [10**6] * 50)
    assert (len(view), len(other)) == (50, 40)


def test_what_was_passed_of_a_shared_index_counts_when_it_is_read_again() -> None:
    world = Sealing(is_shared=True)
    view = View(world.index)
    view.add_many(1, range(50), [10**6] * 50)
    view.pass_positions([(1, 3)])
    assert len(view) == 49
    view.add_many(1, range(2, 5), [10**6] * 3)
    assert len(view) == 50


def test_in_memory_there_is_one_part() -> None:
    view = View(DelayedIndex(HandClock(), IndexSettings(tick_ms=1, strict=True)))
    assert parts(view) == []
    view.add_many(3, range(60_000), [1000 + n % 77 for n in range(60_000)])
    view.add(Position(4, 0), 5)
    view.pass_positions([(3, 5)])
    [part] = parts(view)
    assert (part.state, part.positions, part.first_ms, part.last_ms) == ("memory", 60_000, 5, 1076)


def recover(world: Sealing, places: list[tuple[int, int]]) -> None:
    """A bucket that an earlier process has sealed."""
    codes = np.array([ledger_id << 32 | entry_id for ledger_id, entry_id in places], np.int64)
    rows = Rows(np.full(len(places), 10**6, np.int64), codes)
    encoded = encode_bucket(places[0][0], places[-1][0], rows, 300_000, 5)
    directory = decode_directory(encoded.directory)
    stored = StoredBucket(2000 + len(world.entries), directory, 1)
    world.entries[stored] = encoded.segments
    world.index.recovered(stored, directory.members)


def test_buckets_whose_ranges_overlap_have_what_their_rows_are() -> None:
    """One that was read again spans a good one: of what lies in both ranges it has nothing. When some of
    their rows are not wanted any more, it is not known whose of those in both ranges; the sum is.
    """
    world = Sealing()
    view = View(world.index)
    recover(world, [(ledger_id, n) for ledger_id in (5, 6) for n in range(40)])
    recover(world, [(ledger_id, n) for ledger_id in (4, 7) for n in range(10)])
    for text, count in {"4-7": 20, "5-6": 80}.items():
        [part] = [part for part in parts(view) if part.range_text == text]
        assert (part.positions, part.is_estimated) == (count, False)
    view.pass_positions([(5, 1), (7, 1)])
    assert {part.range_text: part.is_estimated for part in parts(view)} == {"4-7": True, "5-6": True}


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_after_anything_the_parts_add_up(seed: int, is_shared: bool) -> None:
    world, chance = Sealing(is_shared=is_shared), random.Random(seed)
    views = [View(world.index) for _ in range(1 + is_shared)]
    ledger_id, entry_id = 1, 0
    for _ in range(100):
        view = chance.choice(views)
        match chance.randrange(9):
            case 0 | 1 | 2:
                if chance.random() < 0.3:
                    ledger_id, entry_id = ledger_id + 1, 0
                for _ in range(chance.randrange(1, 15)):
                    due_ms = world.clock.ms + chance.randrange(1, 90_000)
                    view.add(Position(ledger_id, entry_id), due_ms)
                    entry_id += 1
            case 3:
                world.seal(min(1, len(world.frozen)))
            case 4:
                world.clock.ms += chance.randrange(20_000)
                world.load()
            case 5:
                take(view, chance.randrange(1, 10))
            case 6:
                places = slices(eyes.page(view, (chance.randrange(ledger_id + 1), 0), 4))[1]
                view.pass_positions(places)
            case 7:
                for place in slices(eyes.page(view, (chance.randrange(ledger_id + 1), 0), 2))[1]:
                    world.index.reschedule(place, world.clock.ms + chance.randrange(90_000))
            case _ if chance.random() < 0.2 and world.entries:
                stored = chance.choice(list(world.entries))
                world.index.bucket_lost(stored)
        for one in views:
            parts(one)


def test_without_a_view_the_buckets_are_there_and_nothing_waits_in_them() -> None:
    world = Sealing()
    view = View(world.index)
    view.add_many(1, range(30), [10**6] * 30)
    world.index.feed.freeze_all()
    world.seal(len(world.frozen))
    found = slices(sealed_parts(world.index))[1]  # type: ignore[arg-type]
    assert sum(part.rows_on_disk for part in found) == 30
    assert sum(part.positions for part in found) == 0


def test_ranges_as_text() -> None:
    assert range_text(10 << 32, 11 << 32 | 0xFFFFFFFF) == "10-11"
    assert range_text(10 << 32, 11 << 32 | 7) == "10:0-11:7"
    assert range_text(10 << 32 | 5, 11 << 32 | 0xFFFFFFFF) == f"10:5-11:{0xFFFFFFFF}"
