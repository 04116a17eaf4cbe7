"""When segments are loaded: at once if the keeper is asked, and in time if it is not."""

from __future__ import annotations

import trio

from geminga.tracker.buckets.bucket_settings import BucketSettings
from tests.tracker.bucket_world import World
from tests.tracker.taking import take

ROOMY = BucketSettings(indexes_min=10**6, segment_span_ms=10**7, segment_indexes_max=4, buckets_max=-1)


def test_segments_that_came_to_be_due_are_loaded_when_the_keeper_is_asked() -> None:
    """Not only when it looks by itself, which may be a second later."""
    world = World(1, ROOMY)

    async def script(world: World) -> None:
        places = await world.seal(5, after_ms=600_000)
        await trio.testing.wait_all_tasks_blocked()
        world.clock.ms += 700_000
        asked_s = trio.current_time()
        await trio.testing.wait_all_tasks_blocked()
        assert (world.store.calls["read"], take(world.view, 99)) == (0, []), "message time was moved by hand"
        world.keeper.poke()
        await trio.testing.wait_all_tasks_blocked()
        assert trio.current_time() == asked_s
        assert take(world.view, 99) == places

    assert world.run(script)


def test_segments_that_came_to_be_due_are_loaded_soon_if_the_keeper_is_not_asked() -> None:
    world = World(1, ROOMY)

    async def script(world: World) -> None:
        places = await world.seal(5, after_ms=600_000)
        await trio.testing.wait_all_tasks_blocked()
        world.clock.ms += 700_000
        await trio.sleep(1.5)
        assert take(world.view, 99) == places

    assert world.run(script)
