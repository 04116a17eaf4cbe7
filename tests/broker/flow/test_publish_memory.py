"""Who gets memory for what it publishes, in which order, and what becomes of a write that takes too long."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from geminga.broker.flow.publish_memory import BROKEN_PROMISES_MAX, PublishMemory, Reservation
from geminga.broker.flow.publish_rate import PublishLimit
from geminga.broker.policies.settings import BrokerSettings
from geminga.broker.policies.values import PublishRate
from geminga.broker.topic.producer import Producer
from geminga.errors import ServerError
from geminga.limits import KIB, MIB
from geminga.managed_ledger.chain.append_room import AppendRoom
from geminga.names import TopicName
from geminga.wire import pulsar_pb2 as pb
from tests.broker.dispatch_rig import FakeOutbox
from tests.broker.topics_rig import open_topics, send

TOPIC = TopicName.parse("persistent://public/default/t")


class Journal:
    """The bookie as far as publish memory knows it."""

    def __init__(self) -> None:
        self.queued_bytes = 0
        self.room = True

    def has_room(self) -> bool:
        return self.room

    def call_on_change(self, tell: Callable[[], None]) -> None:
        self.changed = tell


class Sender:
    """A connection that receives one frame."""

    def __init__(self, memory: PublishMemory, name: str, order: list[str]) -> None:
        self.name = name
        self.received_bytes = 0
        self.disconnected = False
        self.frame = Reservation(lambda: self.received_bytes, self._disconnect)
        self._memory = memory
        self._order = order

    def _disconnect(self) -> None:
        self.disconnected = True

    async def reserve(self, frame_bytes: int) -> None:
        await self._memory.reserve(self.frame, frame_bytes)
        self._order.append(self.name)


@pytest.fixture
def journal() -> Journal:
    return Journal()


@pytest.fixture
def memory(journal: Journal) -> PublishMemory:
    return PublishMemory(100 * KIB, journal, AppendRoom())  # type: ignore[arg-type]


async def test_room_goes_to_those_who_wait_in_the_order_of_their_coming(
    memory: PublishMemory, nursery: trio.Nursery
) -> None:
    order: list[str] = []
    first, large, small = (Sender(memory, name, order) for name in ("first", "large", "small"))
    await first.reserve(80 * KIB)
    nursery.start_soon(large.reserve, 60 * KIB)
    await wait_all_tasks_blocked()
    nursery.start_soon(small.reserve, 20 * KIB)  # it would fit, but it came later
    await wait_all_tasks_blocked()
    assert order == ["first"]
    assert not memory.has_room()
    assert not memory.try_reserve(Sender(memory, "", order).frame, 1)
    memory.release(first.frame)
    await wait_all_tasks_blocked()
    assert order == ["first", "large", "small"]
    assert memory.used_bytes == 80 * KIB
    memory.release(large.frame)
    memory.release(small.frame)
    memory.release(small.frame)
    assert memory.used_bytes == 0


async def test_what_is_not_durable_counts_and_the_journal_says_when_it_is(
    memory: PublishMemory, journal: Journal, nursery: trio.Nursery
) -> None:
    order: list[str] = []
    sender = Sender(memory, "a", order)
    journal.queued_bytes = 100 * KIB
    assert not memory.has_room()
    nursery.start_soon(sender.reserve, 50 * KIB)
    await wait_all_tasks_blocked()
    journal.queued_bytes = 60 * KIB
    journal.changed()
    await wait_all_tasks_blocked()
    assert order == []
    journal.queued_bytes, journal.room = 50 * KIB, False
    journal.changed()
    await wait_all_tasks_blocked()
    assert order == []  # the write cache is full
    journal.room = True
    journal.changed()
    await wait_all_tasks_blocked()
    assert order == ["a"]


async def test_a_frame_larger_than_all_is_taken_when_nothing_else_is_under_way(
    memory: PublishMemory, journal: Journal, nursery: trio.Nursery
) -> None:
    order: list[str] = []
    sender = Sender(memory, "a", order)
    journal.queued_bytes = 1
    nursery.start_soon(sender.reserve, 500 * KIB)
    await wait_all_tasks_blocked()
    assert order == []
    journal.queued_bytes = 0
    journal.changed()
    await wait_all_tasks_blocked()
    assert order == ["a"]
    assert not memory.has_room()


async def test_who_gives_up_waiting_leaves_nothing_behind(memory: PublishMemory) -> None:
    order: list[str] = []
    first, second = Sender(memory, "first", order), Sender(memory, "second", order)
    await first.reserve(80 * KIB)
    with trio.CancelScope() as scope:
        scope.cancel()
        await second.reserve(80 * KIB)
    memory.release(second.frame)
    assert memory.used_bytes == 80 * KIB
    memory.release(first.frame)
    assert memory.has_room()
    await second.reserve(100 * KIB)


async def test_who_sends_nothing_lends_its_room_and_asks_again(
    memory: PublishMemory, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    order: list[str] = []
    silent, busy = Sender(memory, "silent", order), Sender(memory, "busy", order)
    await silent.reserve(80 * KIB)
    silent.received_bytes = 10 * KIB
    await busy.reserve(80 * KIB)  # nobody's word that the rest of the silent one's comes
    assert trio.current_time() == pytest.approx(1.0)
    assert memory.used_bytes == 90 * KIB
    assert not silent.disconnected
    nursery.start_soon(silent.reserve, 80 * KIB)
    await trio.sleep(0.5)
    assert order == ["silent", "busy"]
    memory.release(busy.frame)
    await trio.sleep(0.5)
    assert order == ["silent", "busy", "silent"]
    assert memory.used_bytes == 80 * KIB


async def test_who_stays_slow_while_others_wait_is_disconnected_and_who_only_waits_is_not(
    memory: PublishMemory, journal: Journal, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    order: list[str] = []
    silent, slow, waiting = (Sender(memory, name, order) for name in ("silent", "slow", "waiting"))
    await silent.reserve(50 * KIB)
    await slow.reserve(50 * KIB)
    journal.queued_bytes = 100 * KIB
    nursery.start_soon(waiting.reserve, 60 * KIB)
    for _ in range(2 * BROKEN_PROMISES_MAX):
        await trio.sleep(1)
        slow.received_bytes += 20 * KIB
    assert silent.disconnected
    assert not slow.disconnected
    assert not waiting.disconnected
    journal.queued_bytes = 0
    nursery.cancel_scope.cancel()


# -- with a topic ------------------------------------------------------------------------------------------


async def test_a_write_that_is_not_durable_in_time_fails_its_producer(autojump_clock: MockClock) -> None:
    async with open_topics(bookie_runs=False) as rig, trio.open_nursery() as nursery:
        topic = await rig.topics.get(TOPIC, create=True)
        late, later = FakeOutbox(), FakeOutbox()
        first = Producer(topic, 1, "first", late, message_bytes_max=MIB)  # type: ignore[arg-type]
        second = Producer(topic, 2, "second", later, message_bytes_max=MIB)  # type: ignore[arg-type]
        for producer in (first, second):
            await topic.add_producer(producer, None)
        first.publish(send(7))
        first.publish(send(8))
        await trio.sleep(20)
        second.publish(send(3))
        await trio.sleep(9.5)
        assert late.commands == []
        await trio.sleep(2)
        error, closed = late.commands
        assert isinstance(error, pb.CommandSendError)
        assert (error.producer_id, error.sequence_id, error.error) == (1, 7, ServerError.PERSISTENCE)
        assert isinstance(closed, pb.CommandCloseProducer)
        assert later.commands == []  # it has waited for 12 s
        assert [producer.name for producer in topic.producers] == ["second"]
        again = Producer(topic, 1, "first", late, message_bytes_max=MIB)  # type: ignore[arg-type]
        await topic.add_producer(again, None)

        await nursery.start(rig.bookie.run)
        await trio.sleep(0.1)
        assert len(late.commands) == 2  # no receipt for what was given up, though it is durable now
        assert (first.pending, second.pending) == (0, 0)
        (receipt,) = later.commands
        assert (receipt.producer_id, receipt.sequence_id) == (2, 3)
        again.publish(send(7))
        await trio.sleep(0.1)
        assert late.commands[2].sequence_id == 7
        nursery.cancel_scope.cancel()


async def test_a_producer_beyond_its_topics_rate_is_held_back(autojump_clock: MockClock) -> None:
    async with open_topics(BrokerSettings(topic_publish_rate=PublishRate(10, -1)), bookie_runs=False) as rig:
        topic = await rig.topics.get(TOPIC, create=True)
        held: list[float] = []
        producer = Producer(topic, 1, "p", FakeOutbox(), message_bytes_max=MIB, throttle=held.append)  # type: ignore[arg-type]
        now_s = topic.clock.monotonic_s()
        for number in range(10):
            producer.publish(send(number))
        assert held == []
        for number in range(5):
            producer.publish(send(number))
        assert held[-1] == pytest.approx(now_s + 0.5)


def test_a_limit_lets_a_burst_through_and_then_its_rate() -> None:
    limit = PublishLimit(100, 0)
    assert limit.take(100, 10**9, 50.0) <= 50.0
    assert limit.take(50, 0, 50.0) == pytest.approx(50.5)
    assert limit.take(50, 0, 50.5) == pytest.approx(51.0)
    by_bytes = PublishLimit(0, 1000)
    assert by_bytes.take(1, 3000, 10.0) == pytest.approx(12.0)
