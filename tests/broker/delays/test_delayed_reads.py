"""Delayed messages and the reads that find them: many at once, from many sides, and reads that fail."""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from geminga.bookie.running import storage
from geminga.broker.dispatch.consumer import KEY_SHARED, SHARED
from geminga.broker.dispatch.delaying import DueAhead
from geminga.broker.subscription.statistics import statistics_of
from geminga.errors import StorageError
from geminga.managed_ledger.chain.tail_cache import TailCache
from tests.broker.dispatch_rig import OpenRig, Rig, message


async def publish(rig: Rig, delays_ms: list[int]) -> None:
    now_ms = rig.now_ms()
    await rig.publish(
        *(
            message(b"%d" % n, key=f"k{n % 7}", deliver_at_ms=now_ms + delay_ms if delay_ms else 0)
            for n, delay_ms in enumerate(delays_ms)
        )
    )


@pytest.mark.parametrize("sub_type", [SHARED, KEY_SHARED])
@pytest.mark.parametrize("is_shared", [False, True])
async def test_what_is_behind_several_reads_of_delayed_messages_comes_at_once(
    dispatch_rig: OpenRig, autojump_clock: MockClock, sub_type: str, is_shared: bool
) -> None:
    """As Pulsar's testEverythingFilteredInMultipleReads: of three whole reads nothing can be dispatched."""
    async with dispatch_rig() as rig:
        await rig.index(strict=True, tick_ms=16, is_shared=is_shared)
        subscription = await rig.subscription(read_entries_max=10)
        await publish(rig, [5000] * 35 + [0] * 3)
        client = rig.join(subscription, sub_type, permits=10)
        await rig.settle()
        assert client.new() == [b"35", b"36", b"37"]
        assert statistics_of(subscription).msg_delayed == 35
        await trio.sleep(6)
        client.flow(100)
        await rig.settle()
        assert client.new() == [b"%d" % n for n in range(35)]


@pytest.mark.parametrize("sub_type", [SHARED, KEY_SHARED])
async def test_large_messages_that_fall_due_together_are_not_read_together(
    dispatch_rig: OpenRig, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, sub_type: str
) -> None:
    async with dispatch_rig() as rig:
        await rig.index(strict=True, tick_ms=16, is_shared=True)
        subscription = await rig.subscription(read_bytes_max=50_000)
        due_ms = rig.now_ms() + 5000
        await rig.publish(*(message(b"%05d" % n * 2000, key="k", deliver_at_ms=due_ms) for n in range(60)))
        client = rig.join(subscription, sub_type, permits=100)
        await rig.settle()
        assert (client.new(), statistics_of(subscription).msg_delayed) == ([], 60)
        read = rig.ledger.read_positions
        read_bytes: list[int] = []

        async def weighed(*arguments: Any, **named: Any) -> Any:
            entries = await read(*arguments, **named)
            read_bytes.append(sum(len(entry.body) for entry in entries))
            return entries

        monkeypatch.setattr(rig.ledger, "read_positions", weighed)
        await trio.sleep(6)
        await rig.settle()
        assert [payload[:5] for payload in client.new()] == [b"%05d" % n for n in range(60)]
        assert len(read_bytes) >= 12
        assert max(read_bytes) < 65_000


@pytest.mark.parametrize("is_shared", [False, True])
async def test_a_thousand_messages_while_reads_are_asked_for_all_the_time(
    dispatch_rig: OpenRig, autojump_clock: MockClock, is_shared: bool
) -> None:
    """As Pulsar's testDelayedDeliveryWithMultipleConcurrentReadEntries: none early, lost or doubled."""
    async with dispatch_rig(ledger_entries_max=150, rollover_min_ms=0) as rig:
        await rig.index(strict=True, tick_ms=16, is_shared=is_shared)
        subscription = await rig.subscription()
        clients = [rig.join(subscription, SHARED, f"c{n}", permits=40) for n in range(3)]
        draw = random.Random(1)
        started_ms = rig.now_ms()
        due_ms = [started_ms + draw.randrange(500, 3000) for _ in range(1000)]
        came: list[int] = []

        def look() -> None:
            for client in clients:
                for payload in client.new():
                    assert rig.now_ms() >= due_ms[int(payload)], f"{payload!r} is early"
                    came.append(int(payload))
                    client.flow(1)
                    if len(came) % 5 == 0:
                        client.ack_all()

        for first in range(0, 1000, 100):
            await rig.publish(
                *(message(b"%d" % n, deliver_at_ms=due_ms[n]) for n in range(first, first + 100))
            )
            look()
        while len(came) < 1000:
            assert rig.now_ms() < started_ms + 10_000, f"{1000 - len(came)} are missing"
            subscription.wake()
            await trio.sleep(0.003)
            look()
        await trio.sleep(5)
        look()
        assert sorted(came) == list(range(1000))


@pytest.mark.parametrize("is_shared", [False, True])
async def test_reads_that_fail_for_a_while_lose_no_delayed_message(
    dispatch_rig: OpenRig, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, is_shared: bool
) -> None:
    """As Pulsar's testDispatcherReadFailure: neither the reads that find them nor those that fetch what is
    due."""
    async with dispatch_rig() as rig:
        await rig.index(strict=True, tick_ms=16, is_shared=is_shared)
        subscription = await rig.subscription(read_retry_ms_min=100, read_retry_ms_max=400)
        fails = True
        failed = 0

        def failing(name: str) -> None:
            read = getattr(rig.ledger, name)

            async def try_to(*arguments: Any, **named: Any) -> Any:
                nonlocal failed
                if fails:
                    failed += 1
                    raise StorageError("no answer")
                return await read(*arguments, **named)

            monkeypatch.setattr(rig.ledger, name, try_to)

        failing("read")
        failing("read_positions")
        monkeypatch.setattr(rig.ledger, "read_cached", lambda *_: [])
        await publish(rig, [3000 + n for n in range(20)])
        client = rig.join(subscription, SHARED)
        await trio.sleep(2)
        assert failed > 2
        fails = False
        await trio.sleep(0.5)
        assert (client.payloads, statistics_of(subscription).msg_delayed) == ([], 20)
        fails, failed = True, 0
        await trio.sleep(2)
        assert failed > 2
        assert not client.payloads
        fails = False
        await trio.sleep(2)
        assert sorted(client.payloads, key=int) == [b"%d" % n for n in range(20)]


async def test_messages_due_one_by_one_from_disk_are_read_many_at_once(
    dispatch_rig: OpenRig, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TailCache, "read", lambda *_: [])
    # However busy the machine is.
    monkeypatch.setattr(storage, "LOAD_AHEAD_MS_MAX", 60_000)
    async with dispatch_rig() as rig:
        await rig.index(strict=True, tick_ms=1, bucket_indexes_min=100)
        subscription = await rig.subscription()
        client = rig.join(subscription, SHARED)
        due_s = list(range(60, 460))
        random.Random(5).shuffle(due_s)
        # Large, and far apart: a read of one does not bring those that are due after it.
        now_ms = rig.now_ms()
        await rig.publish(*(message(b"%d" % n + bytes(2000), deliver_at_ms=now_ms + 1000 * n) for n in due_s))
        await rig.settle()
        await rig.bookie.flush()
        before = rig.bookie.statistics()
        for n in range(60, 460):
            await trio.sleep((now_ms + 1000 * n + 500 - rig.now_ms()) / 1000)
            assert [payload.rstrip(b"\0") for payload in client.new()] == [b"%d" % n]
        after = rig.bookie.statistics()
        assert 2 <= after.reads_from_log - before.reads_from_log < 40
        assert after.read_log_bytes - before.read_log_bytes < 2 * 400 * 2100, "hardly any is loaded twice"


def test_as_much_is_read_along_as_was_of_use() -> None:
    ahead = DueAhead()
    counts = []
    for _ in range(9):
        counts.append(ahead.next_count())
        ahead.note_read(1)
        ahead.note_read(counts[-1])
    assert counts == [2, 6, 14, 30, 62, 126, 128, 128, 128]
    # All of it is evicted before its time.
    for _ in range(9):
        counts.append(ahead.next_count())
        ahead.note_read(1)
    assert counts[9:] == [128, 64, 32, 16, 8, 4, 2, 1, 0]
