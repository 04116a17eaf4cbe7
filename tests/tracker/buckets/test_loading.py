"""When segments are loaded: at once if the buckets is asked, and in time if it is not."""

from __future__ import annotations

import logging

import pytest
import trio

from geminga.tracker.buckets.bucket_settings import BucketSettings
from tests.tracker.bucket_world import World
from tests.tracker.taking import take

ROOMY = BucketSettings(indexes_min=10**6, segment_span_ms=10**7, segment_indexes_max=4, buckets_max=-1)


def test_segments_that_came_to_be_due_are_loaded_when_the_index_asks() -> None:
    """Not only when it looks by itself, which may be a second later."""
    world = World(1, ROOMY)

    async def script(world: World) -> None:
        places = await world.seal(5, after_ms=600_000)
        await trio.testing.wait_all_tasks_blocked()
        world.clock.ms += 700_000
        asked_s = trio.current_time()
        await trio.testing.wait_all_tasks_blocked()
        assert (world.store.calls["read"], take(world.view, 99)) == (0, []), "message time was moved by hand"
        world.buckets.poke()
        await trio.testing.wait_all_tasks_blocked()
        assert trio.current_time() == asked_s
        assert take(world.view, 99) == places

    assert world.run(script)


def test_segments_that_came_to_be_due_are_loaded_soon_if_the_index_does_not_ask() -> None:
    world = World(1, ROOMY)

    async def script(world: World) -> None:
        places = await world.seal(5, after_ms=600_000)
        await trio.testing.wait_all_tasks_blocked()
        world.clock.ms += 700_000
        await trio.sleep(1.5)
        assert take(world.view, 99) == places

    assert world.run(script)


def test_a_bucket_that_cannot_be_read_for_minutes_stays_and_serves(caplog: pytest.LogCaptureFixture) -> None:
    """Its messages are late, others are not; reads are seconds apart; each state has a line."""
    world = World(1, ROOMY)

    async def script(world: World) -> None:
        late = await world.seal(4, after_ms=600_000)
        (bucket,) = world.buckets.stored
        named = dict(world.owner.properties())
        world.store.failures["read"] = 10**6
        world.clock.ms += 700_000
        world.buckets.poke()
        await trio.sleep(10)
        begun = world.store.calls["read"]
        await trio.sleep(300)
        assert 50 <= world.store.calls["read"] - begun <= 70, "some seconds apart"
        other = world.publish(3, within_ms=100)
        world.clock.ms += 100
        assert sorted(take(world.view, 99)) == other, "others are in time"
        world.taken.update(other)
        assert world.buckets.stored == [bucket]
        assert (world.owner.properties(), world.rereads) == (named, [])
        world.store.failures["read"] = 0
        await trio.sleep(6)
        assert sorted(await world.deliver(world.clock.ms)) == sorted(late)
        assert world.buckets.operations.counts["load"].failed > 60

    with caplog.at_level(logging.INFO, "geminga.tracker"):
        assert world.run(script)
    failed, again = [record for record in caplog.records if "read" in record.getMessage()]
    assert (failed.levelno, again.levelno) == (logging.WARNING, logging.WARNING)
    assert "cannot be read, so its messages are late: simulated failure to read; " in failed.getMessage()
    assert "nothing is deleted: see that the disk, the memory and the open files" in failed.getMessage()
    assert "is read again after 3" in again.getMessage()


def test_a_hiccup_of_the_disk_is_not_worth_a_line(caplog: pytest.LogCaptureFixture) -> None:
    world = World(1, ROOMY)

    async def script(world: World) -> None:
        places = await world.seal(4, after_ms=600_000)
        world.store.failures["read"] = 4
        assert len(await world.deliver(world.clock.ms + 700_000)) == len(places)

    with caplog.at_level(logging.INFO, "geminga.tracker"):
        assert world.run(script)
    assert not caplog.records
