"""When a consumer gets delayed messages, on real parts and a clock of the test's own: never early, hardly
late, in batches; and with a precision of the subscription's own early by less than that.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from geminga.broker.delays.settings import DelayPolicy
from geminga.broker.dispatch.consumer import KEY_SHARED, SHARED
from geminga.broker.dispatch.delaying import DUE_PAUSE_MS, DuePace
from geminga.broker.subscription.subscription import Subscription
from geminga.errors import ServiceNotReady
from geminga.managed_ledger.cursor.bucket_properties import named_ledgers
from geminga.position import Position
from geminga.tracker.index.view import View
from tests.broker.delays.test_topic_delays import SteppedClock, publish, restarted, until
from tests.broker.dispatch_rig import Client, OpenRig, Rig, position_of

INDEXES = pytest.mark.parametrize("is_shared", [False, True], ids=["own", "shared"])
TRACKERS = pytest.mark.parametrize("keeps_buckets", [False, True], ids=["memory", "buckets"])
FIRST_MS = 2000
LATE_MAX_MS = 20


class Receipts:
    """What a consumer gets, and at which times; it acknowledges at once."""

    def __init__(self, rig: Rig, subscription: Subscription, sub_type: str, permits: int = 10_000) -> None:
        self.client: Client = rig.join(subscription, sub_type, permits=permits)
        self.client.outbox.log = lambda command: self._note(rig, command)
        self.at_ms: dict[Position, int] = {}

    def _note(self, rig: Rig, command: Any) -> None:
        if hasattr(command, "message"):
            self.at_ms[position_of(command)] = rig.now_ms()

    def late_ms(self, due_ms: dict[Position, int]) -> list[int]:
        assert self.at_ms.keys() == due_ms.keys()
        return [self.at_ms[place] - due_ms[place] for place in due_ms]


async def published(rig: Rig, delays_ms: list[int]) -> dict[Position, int]:
    """Each with its due time."""
    now_ms = rig.now_ms()
    places = await publish(rig, delays_ms)
    return {place: now_ms + delay_ms for place, delay_ms in zip(places, delays_ms, strict=True)}


@TRACKERS
@INDEXES
@pytest.mark.parametrize("sub_type", [SHARED, KEY_SHARED])
async def test_defaults_are_exact_whatever_tick_a_policy_has(
    dispatch_rig: OpenRig, autojump_clock: MockClock, keeps_buckets: bool, is_shared: bool, sub_type: str
) -> None:
    async with dispatch_rig() as rig:
        delays = await rig.index(keeps_buckets=keeps_buckets, is_shared=is_shared)
        delays.set_policy(DelayPolicy(True, tick_ms=5000))
        subscription = await rig.subscription()
        receipts = Receipts(rig, subscription, sub_type)
        due_ms = await published(rig, random.Random(1).choices(range(FIRST_MS, 3 * FIRST_MS), k=400))
        await until(lambda: len(subscription.delayed) == 400)
        await trio.sleep(3 * FIRST_MS / 1000 + 1)
        late_ms = receipts.late_ms(due_ms)
        assert min(late_ms) >= 0
        assert max(late_ms) <= LATE_MAX_MS
        times = sorted(set(receipts.at_ms.values()))
        assert len(times) <= 2 * FIRST_MS // DUE_PAUSE_MS + 1, "batches"


@TRACKERS
@INDEXES
async def test_a_tick_counts_if_the_broker_is_not_strict(
    dispatch_rig: OpenRig, autojump_clock: MockClock, keeps_buckets: bool, is_shared: bool
) -> None:
    async with dispatch_rig() as rig:
        await rig.index(keeps_buckets=keeps_buckets, is_shared=is_shared, strict=False)
        subscription = await rig.subscription()
        receipts = Receipts(rig, subscription, SHARED)
        due_ms = await published(rig, [FIRST_MS + n for n in range(0, 2000, 5)])
        await trio.sleep(10)
        late_ms = receipts.late_ms(due_ms)
        assert -1000 <= min(late_ms) < -400
        assert max(late_ms) <= 0


@TRACKERS
@INDEXES
async def test_a_precision_holds_for_its_subscription_and_survives_a_start(
    dispatch_rig: OpenRig, autojump_clock: MockClock, keeps_buckets: bool, is_shared: bool
) -> None:
    settings = {"keeps_buckets": keeps_buckets, "is_shared": is_shared}
    async with dispatch_rig() as rig:
        delays = await rig.index(**settings)
        asked = await rig.subscription("early")
        await rig.subscription("exact")
        await delays.set_precision(asked.delayed, 500)
        await restarted(rig, **settings)
        exact, early = await rig.subscription("exact"), await rig.subscription("early")
        assert early.cursor.properties == {"#geminga-delayed-precision-ms": 500}
        assert named_ledgers(early.cursor.properties) == []
        assert early.cursor.subscription_properties == {}
        receipts = [Receipts(rig, exact, SHARED), Receipts(rig, early, KEY_SHARED)]
        due_ms = await published(rig, [FIRST_MS + n for n in range(0, 2000, 4)])
        await trio.sleep(5)
        exact_ms, early_ms = (found.late_ms(due_ms) for found in receipts)
        assert (min(exact_ms), max(exact_ms) <= LATE_MAX_MS) == (0, True)
        assert -500 < min(early_ms) <= -484
        assert max(early_ms) <= LATE_MAX_MS
        assert len(set(receipts[1].at_ms.values())) <= 5, "a batch for each 500 ms that it touches"


@INDEXES
async def test_a_precision_holds_at_once_and_until_it_is_taken_away(
    dispatch_rig: OpenRig, autojump_clock: MockClock, is_shared: bool
) -> None:
    async with dispatch_rig() as rig:
        delays = await rig.index(is_shared=is_shared)
        subscription = await rig.subscription()
        receipts = Receipts(rig, subscription, SHARED)
        await published(rig, [50_000])
        await until(lambda: len(subscription.delayed) == 1)
        await delays.set_precision(subscription.delayed, 86_400_000)
        await until(lambda: len(receipts.at_ms) == 1)
        await delays.set_precision(subscription.delayed, None)
        assert subscription.cursor.properties == {}
        due_ms = await published(rig, [50_000])
        await trio.sleep(60)
        [at_ms] = [ms for place, ms in receipts.at_ms.items() if place in due_ms]
        assert at_ms >= next(iter(due_ms.values()))


async def test_what_is_not_durable_has_no_precision(dispatch_rig: OpenRig, autojump_clock: MockClock) -> None:
    async with dispatch_rig() as rig:
        delays = await rig.index(is_shared=True)
        reader = await rig.subscription("reader", durable=False)
        with pytest.raises(ServiceNotReady):
            await delays.set_precision(reader.delayed, 500)


async def test_a_consumer_with_one_permit_does_not_wait_for_the_pace(
    dispatch_rig: OpenRig, autojump_clock: MockClock
) -> None:
    """All of these are due: only what was drained is left alone."""
    async with dispatch_rig() as rig:
        await rig.index(is_shared=True)
        subscription = await rig.subscription()
        receipts = Receipts(rig, subscription, SHARED, permits=1)
        await published(rig, [FIRST_MS] * 50)
        await trio.sleep(FIRST_MS / 1000 + 1)
        began_ms = rig.now_ms()
        for count in range(2, 51):
            receipts.client.flow(1)
            await until(lambda count=count: len(receipts.at_ms) == count)
        assert rig.now_ms() - began_ms <= 100


async def test_what_falls_due_while_others_are_sent_waits_for_the_pace(
    dispatch_rig: OpenRig, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round takes two milliseconds here, in which more of a stream are due."""
    async with dispatch_rig() as rig:
        clock = rig.clock = SteppedClock()
        await rig.index(is_shared=True, keeps_buckets=True)
        subscription = await rig.subscription()
        receipts = Receipts(rig, subscription, SHARED)
        due_ms = await published(rig, [FIRST_MS + n for n in range(400)])
        await rig.settle()
        taken: list[int] = []
        take_due = View.take_due

        def slow(view: View, count_max: int) -> Any:
            found = take_due(view, count_max)
            if found:
                taken.append(len(found))
                clock.stepped_ms += 2
            return found

        monkeypatch.setattr(View, "take_due", slow)
        await trio.sleep(FIRST_MS / 1000 + 1)
        assert sum(taken) == 400
        assert len(taken) <= 400 / DUE_PAUSE_MS + 2
        assert 0 <= min(receipts.late_ms(due_ms)) <= max(receipts.late_ms(due_ms)) <= DUE_PAUSE_MS + 3


def test_the_pace() -> None:
    pace = DuePace()
    assert (pace.is_pause(0), pace.resumes_ms(0)) == (False, 0)
    pace.drained(1000)
    end_ms = 1000 + DUE_PAUSE_MS
    assert [pace.is_pause(ms) for ms in (999, 1000, end_ms - 1, end_ms)] == [False, True, True, False]
    assert [pace.resumes_ms(ms) for ms in (1000, 1003, end_ms, 2000)] == [end_ms, end_ms, end_ms, 2000]
    assert pace.resumes_ms(980) == 980, "a wall clock may step back"
