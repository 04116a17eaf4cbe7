"""Buckets that were built elsewhere, brought to an index in use: nothing comes twice, early or never."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from geminga.broker.dispatch.consumer import SHARED
from geminga.broker.operator.delayed_adopt import BadBucket, adopt_buckets
from geminga.broker.operator.delayed_statistics import AdoptedBuckets
from geminga.broker.subscription.subscription import Subscription
from geminga.errors import Conflict, NotAllowed, PeerError
from geminga.managed_ledger.cursor.bucket_properties import DELAYED_PREFIX
from geminga.metadata.node import ValueTooLarge
from geminga.position import Position
from geminga.tracker.format.bucket_bundle_format import decode_bundle, encode_bundle
from geminga.tracker.format.bucket_format import encode_bucket
from geminga.tracker.format.rows import from_columns
from tests.broker.delays.test_delayed_index import Reads
from tests.broker.delays.test_topic_delays import (
    BUCKETS,
    LATER_MS,
    bucket_keys,
    named,
    publish,
    restarted,
    until,
)
from tests.broker.dispatch_rig import OpenRig, Rig

LEDGER_ENTRIES = 25
PLAIN = {**BUCKETS, "buckets_max": -1}
owners = pytest.mark.parametrize("is_shared", [False, True])


def bundle(due_ms: dict[Position, int], *ranges: tuple[int, int]) -> bytes:
    """Buckets of these messages, each of a range of ledgers; one of all of them if none is given."""
    spans = ranges or ((min(due_ms).ledger_id, max(due_ms).ledger_id),)
    return bundle_of(
        {place: at_ms for place, at_ms in due_ms.items() if first <= place.ledger_id <= last}
        for first, last in spans
    )


def bundle_of(parts: Iterable[dict[Position, int]]) -> bytes:
    """A bucket of each of these."""
    buckets = []
    for some in parts:
        codes = [place.ledger_id << 32 | place.entry_id for place in some]
        rows = from_columns(list(some.values()), codes).sorted()
        made = encode_bucket(min(some).ledger_id, max(some).ledger_id, rows, 1000, 7)
        buckets.append([*made.segments, *made.directory])
    return encode_bundle(buckets)


@asynccontextmanager
async def indexed(dispatch_rig: OpenRig, *, is_shared: bool) -> AsyncIterator[tuple[Rig, Subscription]]:
    """Short ledgers, an index that keeps buckets, and one subscription."""
    async with dispatch_rig(ledger_entries_max=LEDGER_ENTRIES, rollover_min_ms=0) as rig:
        await rig.index(**PLAIN, is_shared=is_shared)
        yield rig, await rig.subscription()


async def adopt(rig: Rig, subscription: Subscription, data: bytes) -> AdoptedBuckets:
    rig.topic.delays = rig.delays
    return await adopt_buckets(rig.topic, subscription, data)


async def backlog(rig: Rig, delays_ms: list[int]) -> dict[Position, int]:
    """Published now; the due times of those that have one."""
    now_ms = rig.now_ms()
    positions = await publish(rig, delays_ms)
    return {place: now_ms + ms for place, ms in zip(positions, delays_ms, strict=True) if ms}


def ledgers_of(due_ms: dict[Position, int]) -> list[int]:
    return sorted({place.ledger_id for place in due_ms})


@owners
async def test_a_backlog_that_nobody_has_read_waits_without_being_read(
    dispatch_rig: OpenRig, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, is_shared: bool
) -> None:
    async with indexed(dispatch_rig, is_shared=is_shared) as (rig, subscription):
        due_ms = await backlog(rig, [LATER_MS + n * 7 % 101 for n in range(100)])
        ids = ledgers_of(due_ms)
        found = await adopt(rig, subscription, bundle(due_ms, (ids[0], ids[1]), (ids[2], ids[3])))
        assert (found.buckets, found.messages, found.indexed) == (2, 100, 100)
        assert (found.replaced, found.read_again) == (0, 0)
        assert len(bucket_keys(named(rig, subscription))) == 2
        reads = Reads(rig, monkeypatch)
        client = rig.join(subscription, SHARED)
        await rig.settle()
        assert (len(subscription.delayed), reads.entries, client.positions) == (100, [], [])
        await trio.sleep(LATER_MS / 1000 - 1)
        assert client.positions == []
        await trio.sleep(2)
        assert sorted(client.positions) == sorted(due_ms)
        assert sorted(reads.entries) == sorted(due_ms)
        await until(lambda: not bucket_keys(named(rig, subscription)))


@owners
async def test_what_is_indexed_delivered_or_acknowledged_is_not_doubled(
    dispatch_rig: OpenRig, autojump_clock: MockClock, is_shared: bool
) -> None:
    """Part of the index is in a bucket, part in memory; some messages are at a consumer, some done."""
    async with indexed(dispatch_rig, is_shared=is_shared) as (rig, subscription):
        client = rig.join(subscription, SHARED)
        due_ms = await backlog(rig, [100 if n % 10 == 0 else LATER_MS + n for n in range(110)])
        await until(lambda: len(client.positions) == 11)
        client.ack(*client.positions[:5])
        waiting = [place for place in due_ms if place not in client.positions]
        subscription.delayed.passed(waiting[:3])
        subscription.cursor.acknowledge(waiting[:3])
        await until(lambda: len(bucket_keys(named(rig, subscription))) >= 2)
        before = len(subscription.delayed)
        assert before == 96
        found = await adopt(rig, subscription, bundle(due_ms))
        assert (found.indexed, found.read_again, len(subscription.delayed)) == (0, 0, before)
        assert found.replaced >= 2
        assert len(bucket_keys(named(rig, subscription))) == 1
        await trio.sleep(LATER_MS / 1000 + 1)
        assert sorted(client.positions) == sorted(set(due_ms) - set(waiting[:3]))
        client.ack_all()
        await until(lambda: not bucket_keys(named(rig, subscription)))


@owners
async def test_what_only_replaced_buckets_have_is_read_again(
    dispatch_rig: OpenRig, autojump_clock: MockClock, is_shared: bool
) -> None:
    async with indexed(dispatch_rig, is_shared=is_shared) as (rig, subscription):
        client = rig.join(subscription, SHARED)
        due_ms = await backlog(rig, [LATER_MS + n for n in range(100)])
        await until(lambda: len(subscription.delayed) == 100)
        known = dict(list(due_ms.items())[:55])
        found = await adopt(rig, subscription, bundle(known))
        # An index that is fed entry by entry has buckets of 20, the other one of a ledger each.
        assert 0 < found.read_again <= 20, "of the bucket that the new one knows some of"
        await until(lambda: len(subscription.delayed) == 100)
        await trio.sleep(LATER_MS / 1000 + 1)
        assert sorted(client.positions) == sorted(due_ms)


@owners
async def test_buckets_of_one_ledger_replace_what_they_overlap_with(
    dispatch_rig: OpenRig, autojump_clock: MockClock, is_shared: bool
) -> None:
    """The index has buckets of 20 and of what is left, all inside one ledger or across its border."""
    async with dispatch_rig(ledger_entries_max=90, rollover_min_ms=0) as rig:
        await rig.index(**PLAIN, is_shared=is_shared)
        subscription = await rig.subscription()
        client = rig.join(subscription, SHARED)
        due_ms: dict[Position, int] = {}
        for sealed in range(5):
            due_ms |= await backlog(rig, [LATER_MS + n * 7 % 101 for n in range(20)])
            await until(lambda: len(bucket_keys(named(rig, subscription))) == sealed + 1)  # noqa: B023
        places, ids = list(due_ms), ledgers_of(due_ms)
        before = dict(named(rig, subscription))
        parts = [dict(list(due_ms.items())[first : first + 15]) for first in (25, 40)]
        found = await adopt(rig, subscription, bundle_of(parts))
        # Messages 20 to 24, and 55 to 59.
        assert (found.buckets, found.replaced, found.read_again, found.indexed) == (2, 2, 10, 0)
        await until(lambda: len(subscription.delayed) == 100)
        after = named(rig, subscription)
        kept = {key for key in bucket_keys(before) if after.get(key) == before[key]}
        assert kept == {key for key in bucket_keys(before) if key not in _keys(ids[0], (20, 39), (40, 59))}
        assert _keys(ids[0], (25, 39), (40, 54)) <= set(bucket_keys(after))
        # Across the border of the ledgers, to the end of what there is.
        found = await adopt(rig, subscription, bundle_of([dict(list(due_ms.items())[80:])]))
        assert (found.buckets, found.replaced, found.read_again) == (1, 1, 0)
        assert f"{DELAYED_PREFIX}bucket_{ids[0]}:80_{ids[1]}:9" in named(rig, subscription)
        assert len(subscription.delayed) == 100
        await trio.sleep((min(due_ms.values()) - rig.now_ms() - 1) / 1000)
        assert client.positions == []
        await trio.sleep(1)
        assert sorted(client.positions) == places
        client.ack_all()
        await until(lambda: not bucket_keys(named(rig, subscription)))


def _keys(ledger_id: int, *spans: tuple[int, int]) -> set[str]:
    return {f"{DELAYED_PREFIX}bucket_{ledger_id}:{first}_{ledger_id}:{last}" for first, last in spans}


@owners
async def test_they_are_found_again_after_a_start(
    dispatch_rig: OpenRig, autojump_clock: MockClock, is_shared: bool
) -> None:
    settings = {**PLAIN, "is_shared": is_shared}
    async with dispatch_rig(ledger_entries_max=LEDGER_ENTRIES, rollover_min_ms=0) as rig:
        await rig.index(**settings)
        subscription = await rig.subscription()
        due_ms = await backlog(rig, [LATER_MS + n * 13 % 97 if n % 5 else 0 for n in range(100)])
        await adopt(rig, subscription, bundle(due_ms))
        await restarted(rig, **settings)
        again = await rig.subscription()
        client = rig.join(again, SHARED)
        await until(lambda: len(again.delayed) == 80)
        await trio.sleep(LATER_MS / 1000 + 1)
        assert sorted(client.positions[20:]) == sorted(due_ms)
        assert len(client.positions) == 100


async def test_subscriptions_that_share_an_index_each_get_what_they_lack(
    dispatch_rig: OpenRig, autojump_clock: MockClock
) -> None:
    async with dispatch_rig(ledger_entries_max=LEDGER_ENTRIES, rollover_min_ms=0) as rig:
        await rig.index(**PLAIN, is_shared=True)
        a, b = await rig.subscription("a"), await rig.subscription("b")
        idle = await rig.subscription("idle")
        first = rig.join(a, SHARED)
        second = rig.join(b, SHARED, permits=1)
        due_ms = await backlog(rig, [LATER_MS + n for n in range(75)])
        await until(lambda: len(a.delayed) == 75)
        places = list(due_ms)
        b.acks.skip_to(places[9])
        a.delayed.passed(places[20:30])
        a.cursor.acknowledge(places[20:30])
        found = await adopt(rig, b, bundle(due_ms))
        assert found.indexed == 0
        second.flow(1000)
        await until(lambda: len(b.delayed) == 65 == len(a.delayed))
        await trio.sleep(LATER_MS / 1000 + 1)
        assert first.positions == [*places[:20], *places[30:]]
        assert second.positions == places[10:]
        late = rig.join(idle, SHARED)
        await until(lambda: len(late.positions) == 75)
        assert sorted(late.positions) == places


@owners
async def test_a_refusal_changes_nothing(
    dispatch_rig: OpenRig, autojump_clock: MockClock, is_shared: bool
) -> None:
    async with indexed(dispatch_rig, is_shared=is_shared) as (rig, subscription):
        due_ms = await backlog(rig, [LATER_MS + n for n in range(100)])
        first = next(iter(due_ms))
        whole = bundle(due_ms)
        await adopt(rig, subscription, whole)
        properties, ledger_ids = (
            dict(named(rig, subscription)),
            set(rig.ledger.storage.bookie.inventory.ledgers()),
        )

        def flipped(at: int) -> bytes:
            data = bytearray(whole)
            data[at] ^= 1
            return bytes(data)

        def changed(number: int, entry: bytes) -> bytes:
            (entries,) = decode_bundle(whole)
            entries[number] = entry
            return encode_bundle([entries])

        (entries,) = decode_bundle(whole)
        beyond = {Position(first.ledger_id, 70): LATER_MS, **due_ms}
        elsewhere = {Position(first.ledger_id + 100, n): LATER_MS for n in range(5)}
        damaged = bytearray(entries[3])
        damaged[len(damaged) // 2] ^= 1
        refused = [
            (b"", "cut short"),
            (whole[:-1], "checksum"),
            (flipped(len(whole) // 2), "checksum"),
            (flipped(0), "not a bundle"),
            (encode_bundle([]), "no bucket"),
            (encode_bundle([[]]), "without an entry"),
            (encode_bundle([entries[:-1]]), "."),
            (encode_bundle([entries[1:]]), "directory of"),
            (encode_bundle([entries, entries]), "two buckets span message"),
            (changed(3, bytes(damaged)), "."),
            (changed(3, entries[4]), "segment 3"),
            (bundle(beyond), "there is no message"),
            (bundle(elsewhere), "the topic has the ledgers"),
            (bundle({place: at_ms + 1 for place, at_ms in due_ms.items()}), "due at"),
        ]
        for data, text in refused:
            with pytest.raises(BadBucket, match=text):
                await adopt(rig, subscription, data)
        assert named(rig, subscription) == properties
        assert set(rig.ledger.storage.bookie.inventory.ledgers()) == ledger_ids
        assert len(subscription.delayed) == 100
        client = rig.join(subscription, SHARED)
        await trio.sleep(LATER_MS / 1000 + 1)
        assert client.positions == list(due_ms)
        client.ack_all()
        with pytest.raises(BadBucket, match="acknowledged"):
            await adopt(rig, subscription, whole)


async def test_an_index_without_buckets_takes_none(
    dispatch_rig: OpenRig, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with dispatch_rig() as rig:
        await rig.index(strict=True)
        subscription = await rig.subscription()
        due_ms = await backlog(rig, [LATER_MS] * 5)
        with pytest.raises(NotAllowed, match="keeps no buckets"):
            await adopt(rig, subscription, bundle(due_ms))


async def test_a_large_bucket_is_not_thrown_away_for_a_small_one(
    dispatch_rig: OpenRig, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("geminga.broker.operator.delayed_adopt.READ_AGAIN_MAX", 20)
    async with dispatch_rig(ledger_entries_max=LEDGER_ENTRIES, rollover_min_ms=0) as rig:
        await rig.index(**PLAIN)
        subscription = await rig.subscription()
        due_ms = await backlog(rig, [LATER_MS + n for n in range(100)])
        await adopt(rig, subscription, bundle(due_ms))
        before = dict(named(rig, subscription))
        ids = ledgers_of(due_ms)
        with pytest.raises(Conflict, match=rf"bucket {ids[0]}(:0)?_{ids[3]}\D.* would be replaced"):
            await adopt(rig, subscription, bundle(due_ms, (ids[1], ids[1])))
        assert named(rig, subscription) == before
        found = await adopt(rig, subscription, bundle(due_ms, *((n, n) for n in ids)))
        assert (found.buckets, found.replaced, found.read_again) == (4, 1, 0)


@owners
async def test_what_is_due_and_waits_for_permits_comes_once(
    dispatch_rig: OpenRig, autojump_clock: MockClock, is_shared: bool
) -> None:
    async with indexed(dispatch_rig, is_shared=is_shared) as (rig, subscription):
        due_ms = await backlog(rig, [1000 + n for n in range(50)] + [LATER_MS + n for n in range(25)])
        await adopt(rig, subscription, bundle(due_ms))
        await trio.sleep(1.020)
        tracker = subscription.delayed.tracker
        assert tracker is not None
        assert tracker.has_due()
        tracker.take_due(3)
        assert len(tracker) == 72
        found = await adopt(rig, subscription, bundle(due_ms))
        assert (len(tracker), found.indexed) == (75, 3), "what was taken and is nowhere waits anew"
        client = rig.join(subscription, SHARED)
        await trio.sleep(LATER_MS / 1000 + 1)
        assert sorted(client.positions) == list(due_ms)


@owners
async def test_other_times_stay_in_force(
    dispatch_rig: OpenRig, autojump_clock: MockClock, is_shared: bool
) -> None:
    async with indexed(dispatch_rig, is_shared=is_shared) as (rig, subscription):
        delays = rig.delays
        assert delays is not None
        client = rig.join(subscription, SHARED)
        due_ms = await backlog(rig, [LATER_MS + n for n in range(50)])
        await until(lambda: len(subscription.delayed) == 50)
        buckets = subscription.delayed.buckets
        assert buckets is not None
        places = list(due_ms)
        assert await buckets.reschedule(places[30], rig.now_ms() + 2 * LATER_MS)
        assert await buckets.reschedule(places[7], rig.now_ms() + 1000)
        await adopt(rig, subscription, bundle(due_ms))
        await trio.sleep(2)
        assert client.positions == [places[7]]
        await trio.sleep(LATER_MS / 1000)
        assert client.positions[1:] == [p for n, p in enumerate(places) if n not in (7, 30)]
        await trio.sleep(LATER_MS / 1000)
        assert client.positions[-1] == places[30]
        assert len(client.positions) == 50


@owners
@pytest.mark.parametrize("seed", range(6))
async def test_whatever_happens_meanwhile_each_message_comes_once_and_in_time(
    dispatch_rig: OpenRig, autojump_clock: MockClock, is_shared: bool, seed: int
) -> None:
    chance = random.Random(seed)
    async with dispatch_rig(ledger_entries_max=LEDGER_ENTRIES, rollover_min_ms=0) as rig:
        await rig.index(**{**PLAIN, "buckets_max": chance.choice([-1, 4])}, is_shared=is_shared)
        subscription = await rig.subscription()
        client: Any = None
        came: list[tuple[Position, int]] = []
        due_ms: dict[Position, int] = {}
        acked: set[Position] = set()
        taken = 0

        def look() -> None:
            new = client.new_positions() if client is not None else []
            came.extend((place, rig.now_ms()) for place in new)

        async with trio.open_nursery() as nursery:
            for _ in range(40):
                what = chance.random()
                if what < 0.35:
                    delays = [chance.choice([300, 3000, 30_000]) + chance.randrange(2000) for _ in range(30)]
                    due_ms |= await backlog(rig, delays)
                elif what < 0.7 and due_ms:
                    ids = ledgers_of(due_ms)
                    cut = sorted({chance.choice(ids), chance.choice(ids)})
                    some = {p: at for p, at in due_ms.items() if cut[0] <= p.ledger_id <= cut[-1]}
                    if chance.random() < 0.5:
                        places = sorted(some)
                        first, last = sorted((chance.choice(places), chance.choice(places)))
                        some = {p: at for p, at in some.items() if first <= p <= last}
                    kept = {p: at for p, at in some.items() if chance.random() < 0.9}

                    async def adopting(data: bytes) -> None:
                        nonlocal taken
                        try:
                            await adopt(rig, subscription, data)
                            taken += 1
                        except PeerError:
                            pass

                    if kept:
                        nursery.start_soon(adopting, bundle(kept))
                elif what < 0.8 and client is None:
                    client = rig.join(subscription, SHARED)
                elif what < 0.9 and came:
                    done = chance.sample(came, min(len(came), 20))
                    client.ack(*(place for place, _ in done))
                    acked |= {place for place, _ in done}
                await trio.sleep(chance.choice([0, 0.05, 0.5]))
                look()
        if client is None:
            client = rig.join(subscription, SHARED)
        for _ in range(400):
            await trio.sleep(0.1)
            look()
        assert taken > 3
        places = [place for place, _ in came]
        assert len(places) == len(set(places))
        assert set(places) == set(due_ms)
        assert min(at_ms - due_ms[place] for place, at_ms in came) >= 0
        assert len(subscription.delayed) == 0
        client.ack(*(place for place in places if place not in acked))
        await until(lambda: not bucket_keys(named(rig, subscription)))


@owners
async def test_a_write_that_is_refused_changes_nothing(
    dispatch_rig: OpenRig, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, is_shared: bool
) -> None:
    async with indexed(dispatch_rig, is_shared=is_shared) as (rig, subscription):
        delays = rig.delays
        assert delays is not None
        due_ms = await backlog(rig, [LATER_MS + n for n in range(75)])
        await adopt(rig, subscription, bundle(due_ms))
        buckets = subscription.delayed.buckets
        assert buckets is not None
        properties, ledger_ids = (
            dict(named(rig, subscription)),
            set(rig.ledger.storage.bookie.inventory.ledgers()),
        )

        async def too_large(add: Any, remove: Any) -> None:
            await trio.lowlevel.checkpoint()
            raise ValueTooLarge("as if")

        with monkeypatch.context() as patched:
            patched.setattr(buckets, "_swap", too_large)
            with pytest.raises(ValueTooLarge):
                await adopt(rig, subscription, bundle(due_ms, *((n, n) for n in ledgers_of(due_ms))))
        assert named(rig, subscription) == properties
        await until(lambda: set(rig.ledger.storage.bookie.inventory.ledgers()) == ledger_ids)
        client = rig.join(subscription, SHARED)
        await trio.sleep(LATER_MS / 1000 + 1)
        assert client.positions == list(due_ms)


@owners
async def test_buckets_that_come_while_all_is_cleared_are_gone_with_the_rest(
    dispatch_rig: OpenRig, autojump_clock: MockClock, is_shared: bool
) -> None:
    async with indexed(dispatch_rig, is_shared=is_shared) as (rig, subscription):
        delays = rig.delays
        assert delays is not None
        due_ms = await backlog(rig, [LATER_MS + n for n in range(75)])
        data = bundle(due_ms, *((n, n) for n in ledgers_of(due_ms)))
        outcomes: list[str] = []
        for polls in range(0, 40, 2):
            await adopt(rig, subscription, bundle(due_ms))
            buckets = subscription.delayed.buckets
            assert buckets is not None
            async with trio.open_nursery() as nursery:
                nursery.start_soon(adopt_or_not, rig, subscription, data, outcomes)
                for _ in range(polls):
                    await trio.lowlevel.checkpoint()
                buckets.index.clear()
                await buckets.clear()
            held = {p for p in due_ms if subscription.delayed.holds(p)}
            assert held == (set(due_ms) if bucket_keys(named(rig, subscription)) else set())
            buckets.index.clear()
            await buckets.clear()
        assert set(outcomes) == {"taken in", "refused"}
        await until(lambda: not bucket_keys(named(rig, subscription)))
        client = rig.join(subscription, SHARED)
        await trio.sleep(LATER_MS / 1000 + 1)
        assert sorted(client.positions) == list(due_ms)


async def adopt_or_not(rig: Rig, subscription: Subscription, data: bytes, outcomes: list[str]) -> None:
    try:
        await adopt(rig, subscription, data)
        outcomes.append("taken in")
    except Conflict:
        outcomes.append("refused")
