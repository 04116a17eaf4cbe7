"""The buckets of one index, on a simulated disk: what is sealed, loaded, merged, deleted, and what
happens when something of it fails. Names in the docstrings are of Pulsar's own tests of the same.
"""

from __future__ import annotations

import pytest
import trio

from geminga.errors import LedgerNotFound, ServiceNotReady
from geminga.metadata import records
from geminga.tracker.buckets.bucket_settings import BucketSettings
from geminga.tracker.format.rows import ENTRY_MASK, code_of
from geminga.tracker.format.stored_bucket import (
    KeyRange,
    StoredBucket,
    bucket_key,
    range_of_key,
    whole_ledgers,
)
from tests.tracker.bucket_world import NOW_MS, Place, World
from tests.tracker.taking import take

FOREVER_MS = 10**9


def live(world: World, script) -> None:
    """One life, which nothing disturbs."""
    assert world.run(script)


def roomy(buckets_max: int = -1, **others: int) -> BucketSettings:
    options = {"indexes_min": 10**6, "segment_span_ms": 10**7, "segment_indexes_max": 4} | others
    return BucketSettings(buckets_max=buckets_max, **options)


async def drain(world: World) -> list[Place]:
    return await world.deliver(world.clock.ms + FOREVER_MS)


def damage(world: World, bucket: StoredBucket, *entries: int) -> None:
    """From now on these entries of the bucket do not match their checksum."""
    read = world.store.read_segment

    async def read_damaged(asked: StoredBucket, number: int) -> bytes:
        entry = await read(asked, number)
        if asked is bucket and number in entries:
            return entry[:-1] + bytes([entry[-1] ^ 4])
        return entry

    world.store.read_segment = read_damaged  # type: ignore[method-assign]


# -- sealing -------------------------------------------------------------------------------------------


def test_sealed_rows_are_contained_and_come_in_order() -> None:
    """testContainsMessage: true for what is tracked, sealed or not, and for later ones after a drain."""
    world = World(1, roomy())

    async def script(world: World) -> None:
        places = await world.seal(20)
        assert len(world.buckets.stored) == 1
        assert world.owner.properties() == {
            bucket_key(whole_ledgers(places[0][0], places[-1][0])): world.buckets.stored[0].ledger_id
        }
        assert all(world.view.contains(place) for place in places)
        first = await world.deliver(sorted(world.truth.values())[19])
        assert first == sorted(first, key=lambda place: (world.truth[place], place))
        assert {world.view.contains(place) for place in first} == {False}
        rest = set(places) - set(first)
        assert all(world.view.contains(place) for place in rest)
        assert set(await drain(world)) == rest

    live(world, script)


@pytest.mark.parametrize(
    ("covered", "key"),
    [
        (whole_ledgers(12, 345), "bucket_12_345"),
        (KeyRange(code_of(12, 7), code_of(12, 99)), "bucket_12:7_12:99"),
        (KeyRange(code_of(0, 0), code_of(345, 0)), "bucket_0:0_345:0"),
        (KeyRange(code_of(12, 1), code_of(345, ENTRY_MASK)), "bucket_12:1_345:4294967295"),
    ],
)
def test_the_key_is_pulsars_to_the_letter_where_whole_ledgers_are_covered(
    covered: KeyRange, key: str
) -> None:
    assert bucket_key(covered) == f"#pulsar.internal.delayed.{key}"
    assert range_of_key(bucket_key(covered)) == covered


def test_what_names_no_bucket() -> None:
    for key in (
        "bucket_12",
        "bucket_9_8",
        "bucket_1_2_3",
        "bucket_01_2",
        "bucket__2",
        "bucket_1_-2",
        "bucket_1:5_1:4",
        "bucket_1:5_2",
        "bucket_1_2:5",
        "bucket_1:0_2:4294967295",
        "bucket_1:0_2:4294967296",
        "bucket_1:00_2:3",
        "bucket_1_2147483648",
        "bucket_1_2\n",
        "bucket_\u0661_2",
        "other",
    ):
        assert range_of_key(f"#pulsar.internal.delayed.{key}") is None, key
    assert range_of_key("my.bucket_1_2") is None


def test_failed_seals_leave_the_rows_in_memory_and_the_count_right() -> None:
    """testWithCreateFailDowngrade; and no count inflated by adding again what is tracked."""
    world = World(1, roomy())

    async def script(world: World) -> None:
        world.store.failures["write"] = 4
        places = world.publish(3)
        world.index.feed.freeze_all()
        await trio.testing.wait_all_tasks_blocked()
        assert not world.buckets.stored
        assert len(world.view) == 6
        for place in places:
            assert world.view.add(place, world.truth[place])
        assert len(world.view) == 6
        first = await world.deliver(sorted(world.truth.values())[4])
        assert len(first) == 5
        assert len(world.view) == 1
        await world.settled()  # tried again until it works
        assert world.buckets.operations.counts["create"].failed == 4
        assert world.buckets.operations.counts["create"].succeeded == 1
        assert world.bucket_ledgers() == {bucket.ledger_id for bucket in world.buckets.stored}
        assert len(await drain(world)) == 1

    live(world, script)


def test_a_full_disk_keeps_rows_in_memory_until_there_is_room() -> None:
    world = World(1, roomy())

    async def script(world: World) -> None:
        world.disk.free = 0
        while not world.bookie.read_only:  # noqa: ASYNC110 - virtual time, until the disk is looked at
            await trio.sleep(1)
        world.publish(5)
        world.index.feed.freeze_all()
        await trio.sleep(5)
        assert not world.buckets.stored
        assert len(world.view) == 10
        world.disk.free = 1 << 40
        await world.settled()
        assert len(world.buckets.stored) == 1

    live(world, script)


def test_a_property_that_cannot_be_written_leaves_no_ledger() -> None:
    """Pulsar leaves an orphan, and an index that the next start does not know."""
    world = World(1, roomy())

    async def script(world: World) -> None:
        swap = world.owner.swap
        refused = 3

        async def refusing(add, remove):
            nonlocal refused
            if refused:
                refused -= 1
                raise ServiceNotReady("not now")
            await swap(add, remove)

        world.owner.swap = refusing
        world.publish(3)
        world.index.feed.freeze_all()
        await trio.testing.wait_all_tasks_blocked()
        assert not world.bucket_ledgers()
        await world.settled()
        assert world.bucket_ledgers() == set(world.owner.properties().values())

    live(world, script)


# -- loading -------------------------------------------------------------------------------------------


def test_segments_are_loaded_ahead_of_their_time_and_no_sooner() -> None:
    """testDoesNotLoadNextSnapshotSegmentBeforeCutoff, testLoadsNextSnapshotSegmentAfterCutoff."""
    world = World(1, roomy(segment_span_ms=1000, segment_indexes_max=5))

    async def script(world: World) -> None:
        for entry_id in range(10):
            place = world.next_ledger, entry_id
            world.truth[place] = NOW_MS + 600_000 * (entry_id + 1)
            assert world.view.add(place, world.truth[place])
        world.index.feed.freeze_all()
        await world.settled()
        assert world.store.calls["read"] == 0
        await world.deliver(NOW_MS + 500_000)
        await trio.sleep(5)
        assert world.store.calls["read"] == 0
        await world.deliver(NOW_MS + 545_000)
        await world.settled()
        assert world.store.calls["read"] == 1
        assert len(await world.deliver(NOW_MS + 600_000)) == 1
        assert world.store.calls["read"] == 1
        await drain(world)
        assert world.store.calls["read"] == 10

    live(world, script)


def test_failed_reads_are_tried_again() -> None:
    """testWithBkException: one failure of each operation is silent; after four of a read, first nothing is
    due, later all of it."""
    world = World(1, roomy())

    async def script(world: World) -> None:
        world.store.failures.update(write=1, delete=1)
        places = world.publish(10, after_ms=90_000)
        world.index.feed.freeze_all()
        await world.settled()
        world.store.failures["read"] = 4
        world.clock.ms += 100_000
        world.buckets.poke()
        await trio.testing.wait_all_tasks_blocked()
        assert not take(world.view, 100)
        assert len(world.view) == 20
        taken = set(await world.deliver(world.clock.ms))
        assert taken == set(places)
        await world.settled()
        assert not world.bucket_ledgers()
        assert world.buckets.operations.counts["load"].failed == 4
        assert not world.rereads, "nothing was lost"

    live(world, script)


@pytest.mark.parametrize("how", ["flipped", "truncated", "deleted"])
def test_a_bucket_that_is_lost_costs_its_own_ledgers_only(how: str) -> None:
    """In Pulsar a segment lost at run time wedges the whole tracker: 4 of 50 are delivered, the rest
    never.
    """
    world = World(1, roomy())

    async def script(world: World) -> None:
        lost_places = await world.seal(10, after_ms=200_000)
        kept_places = await world.seal(10, after_ms=200_000)
        lost, _ = world.buckets.stored
        if how == "flipped":
            damage(world, lost, 1)
        elif how == "truncated":
            damage(world, lost, lost.directory.segments - 1)
        else:
            await world.bookie.delete_ledger(lost.ledger_id)
        taken = set(await world.deliver(world.clock.ms + 300_000))
        await trio.sleep(10)
        taken |= set(await world.deliver(world.clock.ms))
        assert taken >= set(kept_places)
        assert world.rereads == [(lost.start_ledger, lost.end_ledger)]
        assert world.buckets.operations.counts["load"].failed == (how != "deleted"), "that, the bookie tells"
        assert len(world.view) == 0
        for place in set(lost_places) - taken:  # as the dispatcher reads them again
            assert not world.view.contains(place)
            assert not world.view.add(place, world.truth[place]), "it is due"
        await world.settled()
        assert not world.bucket_ledgers(), "what is left of it is deleted"
        assert not world.owner.properties()

    live(world, script)


# -- merging -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("buckets_max", [1, 2, 3])
def test_small_bounds_are_kept_and_all_is_delivered_once(buckets_max: int) -> None:
    """testMergeSupportsSmallMaxNumBuckets: 1, 2 and 3 are kept; all come exactly once; nothing is left."""
    world = World(buckets_max, roomy(buckets_max))

    async def script(world: World) -> None:
        for _ in range(8):
            await world.seal(6)
            assert len(world.buckets.stored) <= buckets_max
            await world.deliver(world.clock.ms + 150)
            await world.settled()
        assert world.buckets.operations.counts["merge"].succeeded >= 5 - buckets_max
        await drain(world)
        await world.settled()
        assert world.taken == set(world.truth)
        assert len(world.view) == 0
        assert not world.bucket_ledgers()

    live(world, script)


def test_merged_buckets_are_found_whole_at_the_next_start() -> None:
    """testMergeSnapshot, testMergePreservesAllSnapshotSegments: loaded but undelivered rows are written too
    (Pulsar drops 160 of 580), buckets with one segment merge, and the count is the sum of the buckets'."""
    world = World(4, roomy(3, segment_indexes_max=20))

    async def script(world: World) -> None:
        for _ in range(11):
            await world.seal(5)
        assert len(world.buckets.stored) <= 3
        assert len(world.view) == 110
        await world.deliver(world.clock.ms + 200)

    async def again(world: World) -> None:
        left = set(world.truth) - world.taken
        assert len(world.view) == len(left)
        assert sum(bucket.directory.rows for bucket in world.buckets.stored) >= len(left)
        counts = [world.index.members.count_between(b.first_code, b.last_code) for b in world.buckets.stored]
        assert sum(counts) == len(left)
        for place in left:  # read again all the same
            assert world.view.add(place, world.truth[place])
        assert len(world.view) == len(left)
        assert set(await drain(world)) == left

    live(world, script)
    world.crash("drop")
    live(world, again)


def test_a_merge_that_fails_changes_nothing() -> None:
    """In Pulsar a failed create during a merge deletes the sources anyway."""
    world = World(1, roomy(2))

    async def script(world: World) -> None:
        for _ in range(2):
            await world.seal(6)
        before = dict(world.owner.properties())
        places = world.publish(6)
        world.index.feed.freeze_all()
        while len(world.buckets.stored) < 3:
            await trio.lowlevel.checkpoint()
        world.store.failures["write"] = 3
        await trio.testing.wait_all_tasks_blocked()
        assert world.buckets.operations.counts["merge"].failed >= 1
        assert before.items() <= world.owner.properties().items()
        assert world.bucket_ledgers() == set(world.owner.properties().values())
        assert all(world.view.contains(place) for place in places)
        assert len(world.view) == 36
        await world.settled()
        assert len(world.buckets.stored) <= 2
        assert len(await drain(world)) == 36

    live(world, script)


def test_a_damaged_source_is_lost_and_the_others_are_not() -> None:
    world = World(1, roomy(2))

    async def script(world: World) -> None:
        for _ in range(2):
            await world.seal(6, after_ms=10**6)
        bad = world.buckets.stored[0]
        read = world.store.read_segments

        async def read_damaged(bucket: StoredBucket, first: int, bytes_max: int) -> list[bytes]:
            entries = await read(bucket, first, bytes_max)
            if bucket is bad:
                entries[0] = entries[0][:-1] + bytes([entries[0][-1] ^ 1])
            return entries

        world.store.read_segments = read_damaged  # type: ignore[method-assign]
        await world.seal(6, after_ms=10**6)
        assert world.rereads == [(bad.start_ledger, bad.end_ledger)]
        assert len(world.buckets.stored) == 2
        assert len(world.view) == 24
        assert len(await drain(world)) == 24

    live(world, script)


def test_what_is_acknowledged_or_delivered_is_not_written_again() -> None:
    world = World(1, roomy(1))

    async def script(world: World) -> None:
        places = await world.seal(10, after_ms=10**6)
        world.view.pass_positions(places[::2])  # type: ignore[arg-type]
        world.taken |= set(places[::2])
        await world.seal(10, after_ms=10**6)
        (bucket,) = world.buckets.stored
        assert bucket.directory.rows == 30
        assert len(world.view) == 30

    live(world, script)


# -- deletion ------------------------------------------------------------------------------------------


def test_buckets_behind_mark_delete_go_and_the_one_that_overlaps_it_stays() -> None:
    """testTrimRemovesOrphanedBuckets, testTrimDoesNotDeleteBucketOverlappingFirstActiveLedger,
    testTrimWithNoOrphanedBuckets, testGetScheduledMessagesWhenAllOrphaned."""
    world = World(1, roomy())

    async def script(world: World) -> None:
        buckets = [await world.seal(5) for _ in range(4)]
        stored = world.buckets.stored
        world.view.mark_delete_moved((buckets[2][0][0], 2))
        world.buckets.poke()
        await world.settled()
        assert world.buckets.stored == stored[2:], "nothing is deleted that has something left"
        assert len(world.view) == 10 - 3 + 10
        deletes = world.store.calls["delete"]
        world.view.mark_delete_moved((buckets[2][0][0], 3))
        world.buckets.poke()
        await world.settled()
        assert world.store.calls["delete"] == deletes
        world.view.mark_delete_moved((world.next_ledger, 0))
        assert len(world.view) == 0
        assert not world.view.has_due()
        assert not take(world.view, 10)
        world.buckets.poke()
        await world.settled()
        assert not world.bucket_ledgers()

    live(world, script)


def test_deletions_that_fail_are_tried_again() -> None:
    """testTrimHandlesDeleteFailure, testClearRunsAfterInFlightTrimFailure: the property goes first, so the
    index is right meanwhile."""
    world = World(1, roomy())

    async def script(world: World) -> None:
        places = await world.seal(5)
        others = await world.seal(5)
        world.store.failures["delete"] = 4
        world.view.mark_delete_moved(places[-1])
        world.buckets.poke()
        await trio.testing.wait_all_tasks_blocked()
        assert len(world.view) == len(others)
        assert len(world.owner.properties()) == 1
        assert len(world.bucket_ledgers()) == 2
        world.index.clear()
        await world.buckets.clear()
        assert not world.owner.properties()
        await world.settled()
        assert not world.bucket_ledgers()
        assert world.buckets.operations.counts["delete"].failed == 4

    live(world, script)


def test_clear_leaves_nothing() -> None:
    """testClear."""
    world = World(1, roomy())

    async def script(world: World) -> None:
        for _ in range(3):
            await world.seal(5)
        await world.buckets.clear()
        world.index.clear()
        assert not world.owner.properties()
        assert not world.buckets.stored
        assert world.buckets.stored_bytes == 0
        await world.settled()
        assert not world.bucket_ledgers()
        world.taken |= set(world.truth)
        again = await world.seal(5)
        assert len(await drain(world)) == len(again)

    live(world, script)


@pytest.mark.parametrize("steps", range(0, 40, 3))
def test_a_seal_or_merge_that_ends_after_a_clear_does_not_come_back(steps: int) -> None:
    """testLateSnapshotLengthUpdateAfterClear, AfterTrim: what was on its way stays away."""
    world = World(1, roomy(1))

    async def script(world: World) -> None:
        await world.seal(5)
        places = world.publish(5)
        world.index.feed.freeze_all()
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
        world.index.clear()
        await world.buckets.clear()
        await world.settled()
        assert not world.buckets.stored
        assert not world.owner.properties()
        assert not world.bucket_ledgers()
        assert not any(world.view.contains(place) for place in places)
        assert len(world.view) == 0

    live(world, script)


# -- figures -------------------------------------------------------------------------------------------


def test_operations_are_counted_and_never_reset() -> None:
    """BucketDelayedMessageIndexStatsTest: counters only grow, however often they are looked at."""
    world = World(1, roomy(1))

    async def script(world: World) -> None:
        counts = world.buckets.operations.counts
        assert [counts[kind].succeeded for kind in counts] == [0, 0, 0, 0]
        for number in (1, 2, 3):
            await world.seal(5)
            assert counts["create"].succeeded == number
            assert counts["merge"].succeeded == max(0, number - 1)
            assert sum(counts["create"].latencies) == number
        assert counts["delete"].succeeded == 4
        assert world.buckets.stored_bytes == await world.length_of(world.buckets.stored[0])

    live(world, script)


def test_the_store_by_itself() -> None:
    """BookkeeperBucketSnapshotStorageTest: written, read back by several at once, deleted, not there."""
    world = World(1, roomy())

    async def script(world: World) -> None:
        await world.seal(20)
        (bucket,) = world.buckets.stored
        assert bucket.bytes > 0
        opened, directory = await world.store.open(bucket.ledger_id, bucket.covered)
        assert (opened.key, opened.bytes) == (bucket.key, bucket.bytes)
        assert sum(map(len, directory.members.values())) == 40
        entries: dict[int, bytes] = {}

        async def read(number: int) -> None:
            entries[number] = await world.store.read_segment(bucket, number)

        async with trio.open_nursery() as nursery:
            for number in range(bucket.directory.segments):
                nursery.start_soon(read, number)
        assert [entries[n] for n in sorted(entries)] == await world.store.read_segments(bucket, 0, 10**6)
        await world.store.delete(bucket.ledger_id)
        for reading in (world.store.open(bucket.ledger_id), world.store.read_segment(bucket, 0)):
            with pytest.raises(LedgerNotFound):
                await reading
        await world.store.delete(bucket.ledger_id)
        others = await world.topic.storage.create_ledger_record("data")
        await world.store.delete(others)
        assert world.metadata.get(records.ledger_path(others)) is not None, "only what is ours"

    live(world, script)
