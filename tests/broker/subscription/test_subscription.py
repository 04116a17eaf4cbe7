"""A subscription's life: seek, close, delete, readers that vanish, the end of a topic, types, statistics."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from geminga.broker.dispatch.consumer import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED
from geminga.broker.subscription.statistics import statistics_of
from geminga.errors import ConsumerBusy, NotAllowed, ServiceNotReady
from geminga.position import EARLIEST, LATEST
from geminga.wire import pulsar_pb2 as pb
from tests.broker.dispatch_rig import OpenRig, message


def numbers(first: int, count: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, first + count)]


@pytest.mark.parametrize("sub_type", [EXCLUSIVE, SHARED, KEY_SHARED])
async def test_seek_disconnects_and_reads_from_there(dispatch_rig: OpenRig, sub_type: str) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        client = rig.join(subscription, sub_type)
        positions = await rig.numbered(10)
        await rig.settle()
        client.ack_all()
        await subscription.seek(positions[4])
        closed = client.told(pb.CommandCloseConsumer)
        assert [(c.consumer_id, c.request_id) for c in closed] == [(client.consumer.consumer_id, 2**64 - 1)]
        assert client.consumer.closed
        client.ack(positions[9])
        client.flow(5)
        assert subscription.backlog() == 6, "what is still on its way from before the seek does not count"
        again = rig.join(subscription, sub_type)
        await rig.settle()
        assert again.payloads == numbers(4, 6)


async def test_seek_to_the_ends(dispatch_rig: OpenRig) -> None:
    async with dispatch_rig(ledger_entries_max=4, rollover_min_ms=0) as rig:
        subscription = await rig.subscription()
        await rig.numbered(10)
        await subscription.seek(LATEST)
        assert subscription.backlog() == 0
        client = rig.join(subscription)
        await rig.numbered(1, start=10)
        await rig.settle()
        assert client.payloads == [b"10"]
        await subscription.seek(EARLIEST)
        again = rig.join(subscription)
        await rig.settle()
        assert again.payloads == numbers(0, 11)


async def test_seek_into_a_batch(dispatch_rig: OpenRig) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        positions = await rig.publish(message(b"a", batch=4), message(b"b", batch=4))
        await subscription.seek(positions[1], ack_set=[0b1100])
        client = rig.join(subscription)
        await rig.settle()
        assert client.payloads == [b"b"]
        assert list(client.deliveries[0].message.ack_set) == [0b1100]


async def test_nobody_may_join_during_a_seek_and_ready_waits_for_its_end(
    dispatch_rig: OpenRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        await rig.numbered(3)
        go_on = trio.Event()
        reset = type(subscription.cursor).reset

        async def slow_reset(cursor: Any, position: Any) -> None:
            await go_on.wait()
            await reset(cursor, position)

        monkeypatch.setattr(type(subscription.cursor), "reset", slow_reset)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(subscription.seek, LATEST)
            await rig.settle()
            consumer, _ = rig.consumer()
            with pytest.raises(ServiceNotReady, match="^Subscription is fenced$"):
                subscription.add_consumer(consumer)
            with pytest.raises(ConsumerBusy, match="^Failed to fence subscription$"):
                await subscription.seek(EARLIEST)
            go_on.set()
            await subscription.ready()
            subscription.add_consumer(consumer)
        assert subscription.backlog() == 0


async def test_a_seek_that_is_cancelled_leaves_a_working_subscription(
    dispatch_rig: OpenRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        await rig.numbered(3)
        client = rig.join(subscription)
        await rig.settle()

        async def never(cursor: Any) -> None:
            await trio.sleep_forever()

        monkeypatch.setattr(type(subscription.cursor), "persist", never)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(subscription.seek, EARLIEST)
            await rig.settle()
            nursery.cancel_scope.cancel()
        monkeypatch.undo()
        assert client.consumer.closed
        again = rig.join(subscription)
        await rig.settle()
        assert again.payloads == numbers(0, 3)


async def test_a_seek_on_failover_disconnects_the_active_one_only(
    dispatch_rig: OpenRig, autojump_clock: MockClock
) -> None:
    async with dispatch_rig(partition=0) as rig:
        subscription = await rig.subscription()
        active, idle = (rig.join(subscription, FAILOVER, name) for name in "ab")
        await rig.numbered(3)
        await trio.sleep(1.1)
        active.ack_all()
        await subscription.seek(EARLIEST)
        assert (active.consumer.closed, idle.consumer.closed) == (True, False)
        await trio.sleep(1.1)
        assert idle.payloads == numbers(0, 3)


async def test_a_reader_vanishes_with_its_subscription(dispatch_rig: OpenRig) -> None:
    async with dispatch_rig() as rig:
        positions = await rig.numbered(5)
        subscription = await rig.subscription("reader-1", durable=False, start=positions[2])
        client = rig.join(subscription, durable=False)
        await rig.settle()
        assert client.payloads == numbers(2, 3)
        assert "reader-1" in rig.ledger.cursors
        client.leave()
        consumer, _ = rig.consumer(durable=False)
        with pytest.raises(ServiceNotReady):
            subscription.add_consumer(consumer)
        await rig.settle()
        assert "reader-1" not in rig.ledger.cursors
        assert "reader-1" not in rig.topic.subscriptions


async def test_a_reader_that_seeks_finds_its_subscription_again(
    dispatch_rig: OpenRig, autojump_clock: MockClock
) -> None:
    async with dispatch_rig() as rig:
        positions = await rig.numbered(5)
        subscription = await rig.subscription("reader-1", durable=False)
        client = rig.join(subscription, durable=False)
        await rig.settle()
        await subscription.seek(positions[3])
        assert client.consumer.closed
        await trio.sleep(1)
        again = rig.join(subscription, durable=False)
        await rig.settle()
        assert again.payloads == numbers(3, 2)
        await subscription.seek(EARLIEST)
        await trio.sleep(120)
        assert "reader-1" not in rig.topic.subscriptions, "it did not come back"


async def test_close_disconnects_everyone_and_ends_the_task(dispatch_rig: OpenRig) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        clients = [rig.join(subscription, SHARED) for _ in range(3)]
        await subscription.close()
        assert all(len(c.told(pb.CommandCloseConsumer)) == 1 for c in clients)
        assert not subscription.consumers
        consumer, _ = rig.consumer(SHARED)
        with pytest.raises(ServiceNotReady):
            subscription.add_consumer(consumer)
        assert "s" in rig.ledger.cursors


async def test_a_subscription_has_a_task_while_it_has_consumers(dispatch_rig: OpenRig) -> None:
    async with dispatch_rig() as rig:

        def tasks() -> int:
            return sum(task.name.endswith("Subscription.run") for task in rig.nursery.child_tasks)

        subscription = await rig.subscription()
        await rig.settle()
        assert tasks() == 0
        for first in (0, 6):
            client, other = rig.join(subscription, SHARED), rig.join(subscription, SHARED)
            await rig.settle()
            assert tasks() == 1
            await rig.numbered(3, start=first)
            await rig.settle()
            assert sorted(client.payloads + other.payloads) == numbers(first, 3)
            client.ack_all()
            other.ack_all()
            subscription.remove_consumer(client.consumer)
            await rig.settle()
            assert tasks() == 1
            subscription.remove_consumer(other.consumer)
            await rig.settle()
            assert tasks() == 0
            await rig.numbered(3, start=first + 3)
            late = rig.join(subscription, SHARED, permits=3)
            # It leaves and comes before the task had a turn.
            subscription.remove_consumer(late.consumer)
            late = rig.join(subscription, SHARED)
            await rig.settle()
            assert late.payloads == numbers(first + 3, 3)
            late.ack_all()
            subscription.remove_consumer(late.consumer)
            await rig.settle()
            assert tasks() == 0


async def test_delete_takes_the_cursor_away(dispatch_rig: OpenRig) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        rig.join(subscription)
        await subscription.delete()
        await subscription.delete()
        assert "s" not in rig.ledger.cursors


async def test_the_end_of_a_terminated_topic_is_told_once_everything_is_acknowledged(
    dispatch_rig: OpenRig,
) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        client = rig.join(subscription, SHARED)
        old = rig.join(subscription, SHARED, permits=0, protocol_version=8)
        await rig.numbered(2)
        await rig.settle()
        await rig.ledger.life.terminate()
        subscription.consumers.end_of_topic()
        assert not client.told(pb.CommandReachedEndOfTopic)
        client.ack_all()
        client.flow(1)
        await rig.settle()
        assert len(client.told(pb.CommandReachedEndOfTopic)) == 1
        assert not old.told(pb.CommandReachedEndOfTopic)
        late = rig.join(subscription, SHARED)
        await rig.settle()
        assert len(late.told(pb.CommandReachedEndOfTopic)) == 1


async def test_a_subscription_changes_its_type_when_it_is_empty(dispatch_rig: OpenRig) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        assert subscription.consumers.type == "None"
        await rig.numbered(2)
        for sub_type in (SHARED, EXCLUSIVE, KEY_SHARED, SHARED):
            client = rig.join(subscription, sub_type)
            await rig.settle()
            assert client.payloads == numbers(0, 2)
            assert subscription.consumers.type == sub_type
            client.leave()
            assert subscription.consumers.type == sub_type


async def test_compacted_reads_are_for_one_consumer_only(
    dispatch_rig: OpenRig, caplog: pytest.LogCaptureFixture
) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        shared, _ = rig.consumer(SHARED, read_compacted=True)
        with pytest.raises(NotAllowed) as refused:
            subscription.add_consumer(shared)
        assert str(refused.value) == "readCompacted only allowed on failover or exclusive subscriptions"
        await rig.numbered(1)
        client = rig.join(subscription, read_compacted=True)
        await rig.settle()
        assert client.payloads == [b"0"]
        assert caplog.text.count("asked for the compacted topic") == 1


async def test_one_connection_with_two_consumers_keeps_its_wake_up_until_both_left(
    dispatch_rig: OpenRig,
) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        one = rig.join(subscription, SHARED)
        two = rig.join(subscription, SHARED, outbox=one.outbox)
        one.leave()
        assert len(one.outbox.on_writable) == 1
        two.outbox.writable = False
        await rig.numbered(1)
        await rig.settle()
        two.outbox.has_room_again()
        await rig.settle()
        assert two.payloads == [b"0"]
        two.leave()
        two.leave()
        assert not one.outbox.on_writable


async def test_statistics_and_rates(dispatch_rig: OpenRig, autojump_clock: MockClock) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        empty = statistics_of(subscription)
        assert (empty.type, empty.consumers, empty.is_durable) == ("None", [], True)
        client = rig.join(subscription, SHARED, "c", permits=10, metadata=[pb.KeyValue(key="k", value="v")])
        positions = await rig.numbered(10)
        await rig.settle()
        client.ack(*positions[1:5])
        subscription.update_rates(2.0)
        statistics = statistics_of(subscription)
        assert statistics.name == "s"
        assert statistics.msg_rate_out == 5.0
        assert statistics.msg_throughput_out == statistics.bytes_out_counter / 2
        assert statistics.message_ack_rate == 2.0
        assert statistics.unacked_messages == 6
        assert statistics.non_contiguous_deleted_messages_ranges == 1
        assert statistics.last_mark_delete_advanced_timestamp == 0
        of_consumer = statistics.consumers[0]
        assert of_consumer.consumer_name == "c"
        assert of_consumer.available_permits == 0
        assert of_consumer.avg_messages_per_entry == 1
        assert of_consumer.metadata == {"k": "v"}
        assert of_consumer.bytes_out_counter == sum(len(d.headers_and_payload) for d in client.deliveries)
        assert (
            of_consumer.first_messages_sent_timestamp == of_consumer.last_consumed_timestamp == rig.now_ms()
        )
        client.ack(positions[0])
        await trio.sleep(1)
        subscription.update_rates(1.0)
        statistics = statistics_of(subscription)
        assert statistics.msg_rate_out == 0
        assert statistics.last_mark_delete_advanced_timestamp == rig.now_ms() - 1000
        assert statistics.last_acked_timestamp == rig.now_ms() - 1000
