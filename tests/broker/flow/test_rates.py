"""Limits on what goes out and on who subscribes: how much in which time, for whom, and who is woken."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from geminga.broker.dispatch.consumer import EXCLUSIVE, KEY_SHARED, SHARED, Consumer
from geminga.broker.dispatch.rate import DispatchLimit, dispatch_limit
from geminga.broker.policies.values import DispatchRate, SubscribeRate
from geminga.broker.subscription.statistics import statistics_of
from geminga.broker.topic.subscribe_rate import CONSUMERS_REMEMBERED_MAX, SubscribeLimit, subscribe_limit
from geminga.errors import NotAllowed
from geminga.wire import pulsar_pb2 as pb
from tests.broker.dispatch_rig import FakeOutbox, OpenRig, message


class Published:
    def __init__(self) -> None:
        self.messages = 0

    def __call__(self) -> tuple[int, int]:
        return self.messages, 100 * self.messages


def limit(**rate: int | bool) -> tuple[DispatchLimit, Published]:
    published = Published()
    made = dispatch_limit(DispatchRate(**rate), None, published)  # type: ignore[arg-type]
    assert made is not None
    return made, published


def test_a_period_at_once_and_then_the_rate() -> None:
    made, _ = limit(messages=20, period_s=2)
    assert made.room(100.0, 1) == 20
    made.take(25, 0, 100.0)
    assert made.room(100.0, 1) == 0
    assert made.opens_at_s(100.0) == pytest.approx(100.6)
    assert made.room(made.opens_at_s(100.0), 1) == 1
    assert made.room(101.0, 1) == 5
    assert made.room(200.0, 1) == 20, "no more than a period is saved up"


def test_bytes_are_counted_in_messages_of_the_size_that_goes_out() -> None:
    made, _ = limit(bytes=1000, period_s=1)
    assert made.room(5.0, 100) == 10
    made.take(10, 950, 5.0)
    assert made.room(5.0, 100) == 1, "a byte is left: one message, and the rest is owed"
    made.take(1, 100, 5.0)
    assert made.room(5.0, 100) == 0
    assert made.room(5.0501, 100) == 0
    assert made.room(5.06, 100) == 1


def test_a_fast_rate_is_served_in_portions() -> None:
    made, _ = limit(messages=100_000, period_s=1)
    made.take(100_000, 0, 7.0)
    assert made.opens_at_s(7.0) == pytest.approx(7.01)


def test_relative_rates_come_on_top_of_what_is_published() -> None:
    made, published = limit(messages=10, relative_to_publish_rate=True, period_s=1)
    assert made.room(0.0, 1) == 10
    made.take(10, 0, 0.0)
    published.messages = 40
    assert made.room(1.0, 1) == 50
    made.take(50, 0, 1.0)
    assert made.room(2.0, 1) == 10, "nothing was published in this second"


@pytest.mark.parametrize("rate", [DispatchRate(), DispatchRate(-1, -1, True, 5)])
def test_without_a_number_there_is_no_limit(rate: DispatchRate) -> None:
    assert dispatch_limit(rate, None, Published()) is None


def test_a_limit_stays_the_same_while_its_rate_does() -> None:
    made, published = limit(messages=10, period_s=1)
    assert dispatch_limit(DispatchRate(10, 0, False, 1), made, published) is made
    assert dispatch_limit(DispatchRate(11, 0, False, 1), made, published) is not made


@pytest.mark.parametrize("sub_type", [EXCLUSIVE, SHARED, KEY_SHARED])
async def test_a_subscription_gives_out_no_faster_and_forgets_nothing(
    autojump_clock: MockClock, dispatch_rig: OpenRig, sub_type: str
) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        subscription.limit_dispatch(None, DispatchRate(10, 0, False, 1), Published())
        positions = await rig.numbered(45)
        client = rig.join(subscription, sub_type)
        counts = []
        for _ in range(5):
            await trio.sleep(0.99)
            counts.append(len(client.deliveries))
        assert counts == pytest.approx([20, 30, 40, 45, 45], abs=1)
        assert client.positions == positions
        assert statistics_of(subscription).dispatch_throttled_msg_events_by_subscription_limit > 0


async def test_a_limit_counts_the_messages_of_batches_though_a_consumer_has_had_none(
    autojump_clock: MockClock, dispatch_rig: OpenRig
) -> None:
    """How many entries to read is told by the largest batches that any consumer gets: of 10 messages here."""
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        subscription.limit_dispatch(None, DispatchRate(20, 0, False, 1), Published())
        first = rig.join(subscription, SHARED)
        await rig.publish(message(batch=10))
        await rig.settle()
        second = rig.join(subscription, SHARED)
        await rig.publish(*[message(batch=10)] * 20)
        counts = []
        for _ in range(4):
            await rig.settle()
            counts.append(10 * len(first.deliveries + second.deliveries))
            await trio.sleep(1)
        assert counts == [20, 40, 60, 80]


async def test_subscriptions_share_the_limit_of_their_topic(
    autojump_clock: MockClock, dispatch_rig: OpenRig
) -> None:
    async with dispatch_rig() as rig:
        of_topic, published = limit(messages=20, period_s=1)
        clients = []
        for name in ("a", "b"):
            subscription = await rig.subscription(name)
            subscription.limit_dispatch(of_topic, DispatchRate(), published)
            clients.append(rig.join(subscription, SHARED))
        await rig.numbered(100)
        await trio.sleep(3.99)
        counts = [len(client.deliveries) for client in clients]
        assert sum(counts) == pytest.approx(100, abs=2)
        assert min(counts) > 20, "nobody is left out for long"


async def test_a_limit_that_goes_lets_the_rest_out_at_once(
    autojump_clock: MockClock, dispatch_rig: OpenRig
) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        subscription.limit_dispatch(None, DispatchRate(1, 0, False, 60), Published())
        await rig.publish(*(message(b"%d" % number) for number in range(30)))
        client = rig.join(subscription, SHARED)
        await rig.settle()
        assert len(client.deliveries) == 1
        subscription.limit_dispatch(None, DispatchRate(), Published())
        await rig.settle()
        assert len(client.deliveries) == 30


async def test_due_messages_keep_to_the_limit_too(autojump_clock: MockClock, dispatch_rig: OpenRig) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        subscription.limit_dispatch(None, DispatchRate(5, 0, False, 1), Published())
        client = rig.join(subscription, SHARED)
        due_ms = rig.now_ms() + 3000
        await rig.publish(*(message(b"%d" % n, deliver_at_ms=due_ms) for n in range(20)))
        await trio.sleep(3.1)
        assert 5 <= len(client.deliveries) <= 6
        await trio.sleep(3)
        assert len(client.deliveries) == 20


def consumer(name: str, consumer_id: int = 1, address: str = "127.0.0.1:5") -> Consumer:
    command = pb.CommandSubscribe(
        topic="t",
        subscription="s",
        consumer_id=consumer_id,
        request_id=1,
        consumer_name=name,
        subType=pb.CommandSubscribe.Shared,
    )
    return Consumer(command, FakeOutbox(), protocol_version=20, address=address)  # type: ignore[arg-type]


def test_each_consumer_has_its_own_subscribe_rate_whatever_its_port() -> None:
    made = SubscribeLimit(SubscribeRate(2, 10))
    made.check(consumer("a"), 0.0)
    made.check(consumer("a", address="127.0.0.1:6"), 9.0)
    with pytest.raises(NotAllowed, match="Subscribe limited by subscribe rate limit per consumer"):
        made.check(consumer("a"), 9.9)
    for other in (consumer("b"), consumer("a", 2), consumer("a", address="10.0.0.1:5")):
        made.check(other, 9.9)
    made.check(consumer("a"), 10.0)


def test_the_subscribe_rate_remembers_a_bounded_number_of_consumers() -> None:
    made = SubscribeLimit(SubscribeRate(1, 10))
    for number in range(CONSUMERS_REMEMBERED_MAX + 5):
        made.check(consumer("a", number), 0.0)
    assert len(made._seen) <= CONSUMERS_REMEMBERED_MAX


def test_no_subscribe_rate() -> None:
    assert subscribe_limit(SubscribeRate(), None) is None
    assert subscribe_limit(SubscribeRate(0, 5), None) is None
