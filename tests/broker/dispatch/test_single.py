"""Exclusive and Failover: who gets messages, in which order, and what happens when that changes."""

from __future__ import annotations

import logging

import pytest
import trio
from trio.testing import MockClock

from geminga.broker.dispatch.consumer import EXCLUSIVE, FAILOVER, SHARED
from geminga.broker.subscription.statistics import statistics_of
from geminga.errors import ConsumerBusy
from geminga.position import Position
from geminga.wire import pulsar_pb2 as pb
from tests.broker.dispatch_rig import OpenRig, message


def numbers(first: int, count: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, first + count)]


async def test_everything_comes_in_order_and_with_the_client_bytes(dispatch_rig: OpenRig) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        client = rig.join(subscription)
        positions = await rig.numbered(250)
        await rig.settle()
        assert client.payloads == numbers(0, 250)
        assert client.positions == positions
        first = client.deliveries[0].message
        assert not first.HasField("consumer_epoch")
        assert not first.redelivery_count


async def test_permits_bound_what_is_sent_and_messages_of_a_batch_count_each(dispatch_rig: OpenRig) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        client = rig.join(subscription, permits=25)
        await rig.publish(*(message(b"%d" % n, batch=10) for n in range(10)))
        await rig.settle()
        assert client.new() == numbers(0, 3)
        assert client.consumer.permits == -5, "the last entry may take more than is left"
        client.flow(5)
        await rig.settle()
        assert client.new() == [], "still nothing above zero"
        client.flow(1)
        await rig.settle()
        assert client.new() == numbers(3, 1)


async def test_a_second_exclusive_consumer_is_refused_in_pulsars_words(dispatch_rig: OpenRig) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        first = rig.join(subscription)
        consumer, _ = rig.consumer(EXCLUSIVE)
        with pytest.raises(ConsumerBusy, match="^Exclusive consumer is already connected$"):
            subscription.add_consumer(consumer)
        assert list(subscription.consumers) == [first.consumer]


async def test_another_type_is_refused_in_pulsars_words(dispatch_rig: OpenRig) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        rig.join(subscription)
        consumer, _ = rig.consumer(SHARED)
        with pytest.raises(ConsumerBusy) as refused:
            subscription.add_consumer(consumer)
        assert str(refused.value) == (
            "Subscription is of different type. Active subscription type of 'Exclusive' is different than "
            "the connecting consumer's type 'Shared'."
        )


async def test_a_consumer_whose_connection_died_does_not_keep_others_out(dispatch_rig: OpenRig) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        dead = rig.join(subscription)
        await rig.numbered(3)
        await rig.settle()
        dead.outbox.closed = True
        client = rig.join(subscription)
        await rig.settle()
        assert dead.consumer.closed
        assert client.payloads == numbers(0, 3)


async def test_unacknowledged_entries_come_again_to_the_next_consumer(dispatch_rig: OpenRig) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        first = rig.join(subscription)
        positions = await rig.numbered(10)
        await rig.settle()
        first.ack(positions[0], positions[1], positions[5])
        first.leave()
        second = rig.join(subscription)
        await rig.settle()
        assert second.payloads == [b"2", b"3", b"4", b"6", b"7", b"8", b"9"]
        assert subscription.backlog() == 7


async def test_cumulative_acks_move_mark_delete(dispatch_rig: OpenRig, autojump_clock: MockClock) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        client = rig.join(subscription)
        positions = await rig.numbered(10)
        await rig.settle()
        subscription.acks.acknowledge_cumulative(client.consumer, positions[6])
        assert subscription.cursor.mark_delete == positions[6]
        assert statistics_of(subscription).last_mark_delete_advanced_timestamp == rig.now_ms()
        subscription.acks.acknowledge_cumulative(client.consumer, Position(999, 999))
        assert subscription.cursor.mark_delete == positions[6], "beyond the topic's end means nothing"


async def test_redelivery_reads_again_and_carries_the_epoch(dispatch_rig: OpenRig) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        client = rig.join(subscription, consumer_epoch=0)
        positions = await rig.numbered(4)
        await rig.settle()
        assert [d.message.consumer_epoch for d in client.deliveries] == [0, 0, 0, 0]
        client.ack(positions[0])
        client.new()
        subscription.consumers.redeliver(client.consumer, [positions[3]], None)
        await rig.settle()
        assert client.new() == numbers(1, 3), "single messages cannot be redelivered: all come again"
        subscription.consumers.redeliver(client.consumer, None, 7)
        await rig.settle()
        assert client.new() == numbers(1, 3)
        assert [d.message.consumer_epoch for d in client.deliveries[-3:]] == [7, 7, 7]


async def test_delivery_times_are_ignored_and_that_is_said_once(
    dispatch_rig: OpenRig, caplog: pytest.LogCaptureFixture
) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        client = rig.join(subscription)
        with caplog.at_level(logging.INFO, "geminga.broker"):
            for n in range(3):
                await rig.publish(message(b"%d" % n, deliver_at_ms=rig.now_ms() + 60_000))
                await rig.settle()
        assert client.payloads == numbers(0, 3)
        assert [r.getMessage() for r in caplog.records if "delivered at once" in r.getMessage()] == [
            f"{rig.topic.name} / s: messages with a delivery time are delivered at once, as the type is "
            "Exclusive; only Shared and Key_Shared wait"
        ]


async def test_an_outbox_without_room_gets_nothing_until_it_has_some(dispatch_rig: OpenRig) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        client = rig.join(subscription)
        client.outbox.writable = False
        await rig.numbered(3)
        await rig.settle()
        assert client.new() == []
        client.outbox.has_room_again()
        await rig.settle()
        assert client.new() == numbers(0, 3)


async def test_a_reader_of_some_keys_passes_over_the_others(dispatch_rig: OpenRig) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription(durable=False)
        meta = pb.KeySharedMeta(keySharedMode=pb.STICKY, hashRanges=[pb.IntRange(start=0, end=10_000)])
        client = rig.join(subscription, keySharedMeta=meta, durable=False)
        # key-1 has slot 5536, key-2 has slot 21772
        await rig.publish(message(b"a", key="key-1"), message(b"b", key="key-2"), message(b"c", key="key-1"))
        await rig.settle()
        assert client.payloads == [b"a", b"c"]


async def test_failover_of_a_partition_goes_by_priority_then_name(
    dispatch_rig: OpenRig, autojump_clock: MockClock
) -> None:
    async with dispatch_rig(partition=1) as rig:
        subscription = await rig.subscription()
        names = ["c2", "c0", "c1"]
        clients = {name: rig.join(subscription, FAILOVER, name) for name in names}
        low = rig.join(subscription, FAILOVER, "a-low", priority_level=1)
        await rig.numbered(5)
        await trio.sleep(1.1)
        assert clients["c1"].payloads == numbers(0, 5), "partition 1 of three equals: the second by name"
        assert not clients["c0"].payloads
        assert not clients["c2"].payloads
        assert not low.payloads
        assert statistics_of(subscription).active_consumer_name == "c1"


async def test_failover_waits_and_then_tells_everyone_who_is_active(
    dispatch_rig: OpenRig, autojump_clock: MockClock
) -> None:
    async with dispatch_rig(partition=0) as rig:
        subscription = await rig.subscription()
        first = rig.join(subscription, FAILOVER, "b")
        await rig.numbered(3)
        await rig.settle()
        assert not first.payloads, "activeConsumerFailoverDelayTimeMillis holds for the first one too"
        await trio.sleep(1.0)
        await rig.settle()
        assert first.payloads == numbers(0, 3)
        assert [c.is_active for c in first.told(pb.CommandActiveConsumerChange)] == [True]
        idle = rig.join(subscription, FAILOVER, "c")
        assert [c.is_active for c in idle.told(pb.CommandActiveConsumerChange)] == [False]
        better = rig.join(subscription, FAILOVER, "a")
        await rig.numbered(1, start=3)
        await rig.settle()
        assert not better.payloads
        assert first.payloads == numbers(0, 3), "the one before gets nothing any more"
        first.ack(first.positions[0])
        await trio.sleep(1.0)
        await rig.settle()
        assert better.payloads == numbers(1, 3), "what was acknowledged in the meantime does not come again"
        assert [c.is_active for c in first.told(pb.CommandActiveConsumerChange)] == [True, False]
        assert [c.is_active for c in better.told(pb.CommandActiveConsumerChange)] == [True]
        better.leave()
        await trio.sleep(1.0)
        await rig.settle()
        assert first.payloads == numbers(0, 3) + numbers(1, 3)


async def test_old_clients_are_not_told_who_is_active(
    dispatch_rig: OpenRig, autojump_clock: MockClock
) -> None:
    async with dispatch_rig(partition=0) as rig:
        subscription = await rig.subscription()
        client = rig.join(subscription, FAILOVER, "b", protocol_version=11)
        await rig.numbered(1)
        await trio.sleep(1.1)
        assert client.payloads == numbers(0, 1)
        assert not client.told(pb.CommandActiveConsumerChange)


async def test_entries_that_no_one_may_see_are_acknowledged(
    dispatch_rig: OpenRig, caplog: pytest.LogCaptureFixture
) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        client = rig.join(subscription)
        positions = await rig.publish(
            message(b"0"), b"\x0e\x01garbage that is no metadata", message(b"1", marker=20), message(b"2")
        )
        await rig.settle()
        assert client.payloads == [b"0", b"2"]
        client.ack_all()
        assert subscription.backlog() == 0
        logged = [r.getMessage() for r in caplog.records if "cannot be read" in r.getMessage()]
        assert len(logged) == 1
        assert str(positions[1]) in logged[0]


async def test_a_batch_that_is_partly_acknowledged_comes_with_what_is_left(dispatch_rig: OpenRig) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        client = rig.join(subscription)
        (position,) = await rig.publish(message(b"batch", batch=10))
        await rig.settle()
        subscription.acks.acknowledge_command(
            client.consumer,
            pb.CommandAck(
                consumer_id=client.consumer.consumer_id,
                ack_type=pb.CommandAck.Individual,
                message_id=[
                    pb.MessageIdData(ledgerId=position.ledger_id, entryId=position.entry_id, ack_set=[0b1111])
                ],
            ),
        )
        before = client.consumer.permits
        subscription.consumers.redeliver(client.consumer, None, None)
        await rig.settle()
        assert list(client.deliveries[-1].message.ack_set) == [0b1111]
        assert client.consumer.permits == before - 4, "what was acknowledged takes no permits"
