"""Who gets memory for what it publishes, in which order, and what becomes of a write that takes too long."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from geminga.broker.flow.publish_memory import LargeFrame, PublishMemory
from geminga.broker.flow.publish_rate import PublishLimit
from geminga.broker.policies.policies import EffectivePolicies
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
        self.durable_bytes = 0
        self.room = True

    def has_room(self) -> bool:
        return self.room

    def call_on_change(self, tell: Callable[[], None]) -> None:
        self.changed = tell

    def sync(self, size_bytes: int) -> None:
        """So much of what is queued becomes durable."""
        self.queued_bytes -= size_bytes
        self.durable_bytes += size_bytes
        self.changed()


class Sender:
    """A connection that receives one large frame."""

    def __init__(self, memory: PublishMemory, name: str, order: list[str]) -> None:
        self.name = name
        self.disconnected = False
        self.frame = LargeFrame(self._disconnect)
        self._memory = memory
        self._order = order

    def _disconnect(self) -> None:
        self.disconnected = True

    async def take_turn(self, frame_bytes: int) -> None:
        await self._memory.take_turn(self.frame, frame_bytes, 0)
        self._order.append(self.name)


@pytest.fixture
def journal() -> Journal:
    return Journal()


@pytest.fixture
def memory(journal: Journal) -> PublishMemory:
    """80 KiB, of which 10 are the share of small frames."""
    return PublishMemory(80 * KIB, journal, AppendRoom())  # type: ignore[arg-type]


async def test_turns_are_given_in_the_order_of_asking(memory: PublishMemory, nursery: trio.Nursery) -> None:
    order: list[str] = []
    first, larger, smaller = (Sender(memory, name, order) for name in ("first", "larger", "smaller"))
    await first.take_turn(60 * KIB)
    nursery.start_soon(larger.take_turn, 50 * KIB)
    await wait_all_tasks_blocked()
    nursery.start_soon(smaller.take_turn, 10 * KIB)  # it would fit, but it came later
    await wait_all_tasks_blocked()
    assert order == ["first"]
    assert not memory.try_take_turn(Sender(memory, "", order).frame, 1, 0)
    memory.release(first.frame)
    await wait_all_tasks_blocked()
    assert order == ["first", "larger", "smaller"]
    assert memory.used_bytes == 60 * KIB
    memory.release(larger.frame)
    memory.release(smaller.frame)
    memory.release(smaller.frame)
    assert memory.used_bytes == 0


async def test_large_frames_never_take_the_share_of_small_ones(
    memory: PublishMemory, journal: Journal, nursery: trio.Nursery
) -> None:
    order: list[str] = []
    first, waiting = (Sender(memory, name, order) for name in ("first", "waiting"))
    await first.take_turn(70 * KIB)
    nursery.start_soon(waiting.take_turn, 1)
    await wait_all_tasks_blocked()
    assert order == ["first"]
    for queued_bytes in (0, 10 * KIB - 1):
        journal.queued_bytes = queued_bytes
        assert memory.has_room(), "a small frame does not queue behind a large one"
        await memory.wait_room()
    journal.queued_bytes = 10 * KIB
    assert not memory.has_room(), "more than the share is left to the frame that waits"
    nursery.cancel_scope.cancel()


async def test_small_frames_may_take_what_large_ones_leave_until_one_waits(
    memory: PublishMemory, journal: Journal, nursery: trio.Nursery
) -> None:
    order: list[str] = []
    large = Sender(memory, "large", order)
    journal.queued_bytes = 79 * KIB
    assert memory.has_room()
    nursery.start_soon(large.take_turn, 60 * KIB)
    await wait_all_tasks_blocked()
    assert not memory.has_room()
    nursery.start_soon(memory.wait_room)
    journal.sync(58 * KIB)
    await wait_all_tasks_blocked()
    assert (order, memory.has_room()) == ([], False)
    journal.sync(11 * KIB)
    await wait_all_tasks_blocked()
    assert order == ["large"]
    assert memory.has_room()


async def test_a_whole_large_frame_takes_nothing_of_the_share_until_it_is_durable(
    memory: PublishMemory, journal: Journal, nursery: trio.Nursery
) -> None:
    order: list[str] = []
    large, waiting = (Sender(memory, name, order) for name in ("large", "waiting"))
    journal.queued_bytes = 5 * KIB
    await large.take_turn(60 * KIB)
    journal.queued_bytes += 60 * KIB
    memory.hand_on(large.frame)
    nursery.start_soon(waiting.take_turn, 60 * KIB)
    await wait_all_tasks_blocked()
    assert memory.used_bytes == 65 * KIB
    assert memory.has_room(), "5 KiB are of small frames"
    journal.queued_bytes += 4 * KIB
    assert memory.has_room()
    journal.sync(5 * KIB)
    journal.queued_bytes += 5 * KIB
    assert memory.has_room()
    journal.queued_bytes += KIB
    assert not memory.has_room()
    journal.sync(60 * KIB)
    await wait_all_tasks_blocked()
    assert order == ["large", "waiting"]
    assert memory.used_bytes == 70 * KIB


async def test_a_full_write_cache_holds_all_back(
    memory: PublishMemory, journal: Journal, nursery: trio.Nursery
) -> None:
    order: list[str] = []
    large = Sender(memory, "large", order)
    journal.room = False
    assert not memory.has_room()
    nursery.start_soon(large.take_turn, KIB)
    nursery.start_soon(memory.wait_room)
    await wait_all_tasks_blocked()
    assert order == []
    assert len(nursery.child_tasks) == 2
    journal.room = True
    journal.changed()
    await wait_all_tasks_blocked()
    assert order == ["large"]
    assert memory.waits == 2


async def test_a_frame_larger_than_all_is_taken_when_no_other_large_one_is_under_way(
    memory: PublishMemory, journal: Journal, nursery: trio.Nursery
) -> None:
    order: list[str] = []
    first, larger = (Sender(memory, name, order) for name in ("first", "larger"))
    await first.take_turn(KIB)
    nursery.start_soon(larger.take_turn, 500 * KIB)
    await wait_all_tasks_blocked()
    journal.queued_bytes = KIB
    memory.hand_on(first.frame)
    await wait_all_tasks_blocked()
    assert order == ["first"]
    journal.sync(KIB)
    await wait_all_tasks_blocked()
    assert order == ["first", "larger"]
    assert memory.has_room(), "the share is there all the same"


async def test_a_sender_that_gives_up_waiting_leaves_nothing_behind(memory: PublishMemory) -> None:
    order: list[str] = []
    first, second = Sender(memory, "first", order), Sender(memory, "second", order)
    await first.take_turn(60 * KIB)
    with trio.CancelScope() as scope:
        scope.cancel()
        await second.take_turn(60 * KIB)
    memory.release(second.frame)
    assert memory.used_bytes == 60 * KIB
    memory.release(first.frame)
    await second.take_turn(70 * KIB)


async def test_a_lost_turn_leaves_its_room_and_keeps_what_has_come(
    memory: PublishMemory, nursery: trio.Nursery
) -> None:
    order: list[str] = []
    silent, busy = Sender(memory, "silent", order), Sender(memory, "busy", order)
    await silent.take_turn(60 * KIB)
    nursery.start_soon(busy.take_turn, 50 * KIB)
    await wait_all_tasks_blocked()
    memory.lose_turn(silent.frame, 20 * KIB)
    await wait_all_tasks_blocked()
    assert order == ["silent", "busy"]
    assert memory.used_bytes == 70 * KIB
    nursery.start_soon(silent.take_turn, 60 * KIB)
    await wait_all_tasks_blocked()
    assert order == ["silent", "busy"]
    memory.release(busy.frame)
    await wait_all_tasks_blocked()
    assert order == ["silent", "busy", "silent"]
    assert memory.used_bytes == 60 * KIB
    assert not silent.disconnected


async def test_parts_of_frames_go_only_if_no_room_comes_otherwise_and_the_longest_silent_first(
    memory: PublishMemory, nursery: trio.Nursery
) -> None:
    order: list[str] = []
    names = ("back", "second", "third", "busy", "new")
    back, second, third, busy, new = everyone = [Sender(memory, name, order) for name in names]
    for sender in (back, second, third):
        await sender.take_turn(20 * KIB)
        memory.lose_turn(sender.frame, 18 * KIB)
    await busy.take_turn(16 * KIB)
    order.clear()
    nursery.start_soon(new.take_turn, 30 * KIB)
    await wait_all_tasks_blocked()
    nursery.start_soon(back.take_turn, 40 * KIB)  # the first that lost its turn sends on
    await wait_all_tasks_blocked()
    assert not any(sender.disconnected for sender in everyone), (
        "there is one that goes on: its room will come"
    )
    memory.release(busy.frame)
    await wait_all_tasks_blocked()
    assert [sender.name for sender in everyone if sender.disconnected] == ["second"]
    assert order == ["new"]
    assert memory.used_bytes == (18 + 18 + 30) * KIB
    memory.release(new.frame)
    await wait_all_tasks_blocked()
    assert order == ["new", "back"]
    assert not third.disconnected


async def test_a_frame_of_which_little_has_come_costs_nothing_and_is_let_be(memory: PublishMemory) -> None:
    order: list[str] = []
    little, large = Sender(memory, "little", order), Sender(memory, "large", order)
    await little.take_turn(60 * KIB)
    memory.lose_turn(little.frame, 16 * KIB)
    assert memory.used_bytes == 0
    await large.take_turn(500 * KIB)
    assert not little.disconnected


def test_progress_is_16_kib_in_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(trio, "current_time", lambda: now_s)
    frame = LargeFrame(lambda: None)
    frame.begin_turn(MIB, 0)
    now_s = 100.99
    assert frame.is_progressing(0)
    now_s = 105.0
    assert frame.is_progressing(16 * KIB), "what has come counts, though the loop was late"
    now_s = 105.99
    assert frame.is_progressing(32 * KIB - 1)
    now_s = 106.0
    assert not frame.is_progressing(32 * KIB - 1)


# -- with a topic ------------------------------------------------------------------------------------------


async def test_a_write_that_is_not_durable_in_time_fails_its_producer(autojump_clock: MockClock) -> None:
    async with open_topics(bookie_runs=False) as rig, trio.open_nursery() as nursery:
        topic = await rig.topics.get(TOPIC, create=True)
        late, later = FakeOutbox(), FakeOutbox()
        first = Producer(1, "first", late, message_bytes_max=MIB)  # type: ignore[arg-type]
        second = Producer(2, "second", later, message_bytes_max=MIB)  # type: ignore[arg-type]
        for producer in (first, second):
            await topic.add_producer(producer, None)
        topic.publishing.publish(first, send(7))
        topic.publishing.publish(first, send(8))
        await trio.sleep(20)
        topic.publishing.publish(second, send(3))
        await trio.sleep(9.5)
        assert late.commands == []
        await trio.sleep(2)
        error, closed = late.commands
        assert isinstance(error, pb.CommandSendError)
        assert (error.producer_id, error.sequence_id, error.error) == (1, 7, ServerError.PERSISTENCE)
        assert isinstance(closed, pb.CommandCloseProducer)
        assert later.commands == []  # it has waited for 12 s
        assert [producer.name for producer in topic.producers] == ["second"]
        again = Producer(1, "first", late, message_bytes_max=MIB)  # type: ignore[arg-type]
        await topic.add_producer(again, None)

        await nursery.start(rig.bookie.run)
        await trio.sleep(0.1)
        assert len(late.commands) == 2  # no receipt for what was given up, though it is durable now
        assert (first.pending, second.pending) == (0, 0)
        (receipt,) = later.commands
        assert (receipt.producer_id, receipt.sequence_id) == (2, 3)
        topic.publishing.publish(again, send(7))
        await trio.sleep(0.1)
        assert late.commands[2].sequence_id == 7
        nursery.cancel_scope.cancel()


async def test_a_producer_beyond_its_topics_rate_is_held_back(autojump_clock: MockClock) -> None:
    async with open_topics(
        defaults=EffectivePolicies(broker_publish_rate=PublishRate(10, -1)), bookie_runs=False
    ) as rig:
        topic = await rig.topics.get(TOPIC, create=True)
        held: list[float] = []
        producer = Producer(1, "p", FakeOutbox(), message_bytes_max=MIB, throttle=held.append)  # type: ignore[arg-type]
        now_s = topic.clock.monotonic_s()
        for number in range(10):
            topic.publishing.publish(producer, send(number))
        assert held == []
        for number in range(5):
            topic.publishing.publish(producer, send(number))
        assert held[-1] == pytest.approx(now_s + 0.5)


def test_a_limit_lets_a_burst_through_and_then_its_rate() -> None:
    limit = PublishLimit(100, 0)
    assert limit.take(100, 10**9, 50.0) <= 50.0
    assert limit.take(50, 0, 50.0) == pytest.approx(50.5)
    assert limit.take(50, 0, 50.5) == pytest.approx(51.0)
    by_bytes = PublishLimit(0, 1000)
    assert by_bytes.take(1, 3000, 10.0) == pytest.approx(12.0)
