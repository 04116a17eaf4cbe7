"""What the log says of a bucket that is lost is the same whenever that is found, and tells whose it was."""

from __future__ import annotations

import logging

import pytest

from bench.delayed.million import LOST
from geminga.tracker.buckets.bucket_settings import BucketSettings
from tests.tracker.bucket_world import World

TOPIC = "persistent://public/default/orders"


@pytest.mark.parametrize(("is_shared", "owner"), [(True, TOPIC), (False, f"{TOPIC}, subscription sub")])
@pytest.mark.parametrize("at_start", [False, True])
def test_the_line_of_a_lost_bucket(
    caplog: pytest.LogCaptureFixture, is_shared: bool, owner: str, at_start: bool
) -> None:
    apart = BucketSettings(indexes_min=10**6, segment_span_ms=100, segment_indexes_max=4)
    world = World(5, apart, is_shared=is_shared)
    expected = []

    async def lose(world: World) -> None:
        await world.seal(5, after_ms=200_000)
        (bucket,) = world.buckets.stored
        if at_start:
            world.store.unwatch(bucket.ledger_id)  # or it is noticed at once
        await world.store.delete(bucket.ledger_id)
        text = f"<bucket {bucket.start_ledger}_{bucket.end_ledger} in ledger {bucket.ledger_id}>"
        expected.append(f"{owner}: {text} is lost, its messages are read again from the topic: ")
        if not at_start:
            await world.deliver(world.clock.ms + 300_000)
            await world.settled()

    async def settle(world: World) -> None:
        await world.settled()

    with caplog.at_level(logging.ERROR, "geminga.tracker"):
        assert world.run(lose)
        if at_start:
            world.crash("drop")
            assert world.run(settle)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(expected[0])
    assert ("is deleted or no bucket of" in line) is at_start
    found = LOST.search(line)
    assert found is not None
    assert f"<bucket {found[1]} in ledger" in expected[0]
