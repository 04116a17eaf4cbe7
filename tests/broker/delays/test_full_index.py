"""Buckets that cannot be written: what waits in memory stays bounded, and ordinary messages do not notice."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from geminga.broker.dispatch.consumer import KEY_SHARED, SHARED
from geminga.errors import StorageError
from geminga.tracker.buckets.bucket_store import BucketStore
from geminga.tracker.index import bucket_map
from tests.broker.delays.test_topic_delays import BUCKETS, publish, until
from tests.broker.dispatch_rig import OpenRig

FROZEN_MAX = 200
KINDS = pytest.mark.parametrize(
    ("is_shared", "sub_type"), [(False, SHARED), (False, KEY_SHARED), (True, SHARED)]
)


class Disk:
    """Takes buckets, or does not."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_broken = True
        writing = BucketStore.writing

        @asynccontextmanager
        async def may_fail(store: BucketStore) -> AsyncIterator[Any]:
            if self.is_broken:
                raise StorageError("no room for buckets")
            async with writing(store) as writer:
                yield writer

        monkeypatch.setattr(BucketStore, "writing", may_fail)
        monkeypatch.setattr(bucket_map, "FROZEN_ROWS_MAX", FROZEN_MAX)


@KINDS
async def test_more_is_left_in_the_backlog_until_buckets_are_written(
    dispatch_rig: OpenRig,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    is_shared: bool,
    sub_type: str,
) -> None:
    disk = Disk(monkeypatch)
    async with dispatch_rig(ledger_entries_max=50, rollover_min_ms=0) as rig:
        await rig.index(is_shared=is_shared, **BUCKETS)
        subscription = await rig.subscription()
        client = rig.join(subscription, sub_type, permits=3000)
        await publish(rig, [600_000])
        await rig.settle()
        delays_ms = [0 if n % 100 == 99 else 600_000 + n for n in range(2000)]
        for first in range(0, len(delays_ms), 100):
            await publish(rig, delays_ms[first : first + 100])
            await rig.settle()
        buckets = subscription.delayed.buckets
        assert buckets is not None
        assert client.new() == [b"0"] * 20
        assert FROZEN_MAX < len(subscription.delayed) <= FROZEN_MAX + 150
        await publish(rig, [1000, 100])
        await trio.sleep(3)
        assert client.new() == [], "they wait with the others"

        disk.is_broken = False
        await until(lambda: len(subscription.delayed) == 1981, polls=100_000)
        await rig.settle()
        assert client.new() == [b"1000", b"100"], "overdue by now: in the order of the topic"
        assert buckets.stored
        await trio.sleep(610)
        assert sorted(client.new()) == sorted([b"600000", *(b"%d" % d for d in delays_ms if d)])
        assert len(set(client.positions)) == 2003


@KINDS
async def test_what_is_delivered_from_memory_makes_room_too(
    dispatch_rig: OpenRig,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    is_shared: bool,
    sub_type: str,
) -> None:
    Disk(monkeypatch)
    async with dispatch_rig(ledger_entries_max=50, rollover_min_ms=0) as rig:
        await rig.index(is_shared=is_shared, **BUCKETS)
        subscription = await rig.subscription()
        client = rig.join(subscription, sub_type, permits=3000)
        await publish(rig, [5000])
        await rig.settle()
        for _ in range(10):
            await publish(rig, [5000] * 100)
            await rig.settle()
        assert len(subscription.delayed) <= FROZEN_MAX + 150
        await trio.sleep(100)
        assert len(client.positions) == len(set(client.positions)) == 1001
        assert len(subscription.delayed) == 0


async def test_what_is_due_already_goes_out_though_the_index_is_full(
    dispatch_rig: OpenRig, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    Disk(monkeypatch)
    async with dispatch_rig(ledger_entries_max=50, rollover_min_ms=0) as rig:
        await rig.index(**BUCKETS)
        subscription = await rig.subscription()
        client = rig.join(subscription, SHARED)
        for _ in range(6):
            await publish(rig, [600_000] * 100)
            await rig.settle()
        await publish(rig, [-5000])
        await rig.settle()
        assert client.new() == [b"-5000"]


async def test_a_new_first_consumer_reads_what_was_left_out_once(
    dispatch_rig: OpenRig, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    async with dispatch_rig(ledger_entries_max=50, rollover_min_ms=0) as rig:
        await rig.index(**BUCKETS)
        subscription = await rig.subscription()
        first = rig.join(subscription, SHARED)
        for _ in range(6):
            await publish(rig, [600_000] * 100)
            await rig.settle()
        first.leave()
        disk.is_broken = False
        second = rig.join(subscription, SHARED)
        await until(lambda: len(subscription.delayed) == 600, polls=100_000)
        await trio.sleep(610)
        assert len(second.positions) == len(set(second.positions)) == 600
