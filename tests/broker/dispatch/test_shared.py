"""Shared: turns, permits, redelivery and its counts, unacked limits, partly acknowledged batches."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from geminga.broker.dispatch.consumer import EXCLUSIVE, SHARED
from geminga.broker.subscription.statistics import statistics_of
from geminga.errors import ConsumerBusy, LedgerNotFound, NotAllowed
from geminga.managed_ledger.cursor.batch_index import ACK_SET_WORDS_MAX
from geminga.position import Position
from geminga.wire import pulsar_pb2 as pb
from tests.broker.dispatch_rig import Client, OpenRig, Rig, message


def numbers(first: int, count: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, first + count)]


def ack_command(client: Client, *ids: pb.MessageIdData, **fields: object) -> pb.CommandAck:
    return pb.CommandAck(
        consumer_id=client.consumer.consumer_id,
        ack_type=pb.CommandAck.Individual,
        message_id=ids,
        **fields,  # type: ignore[arg-type]
    )


def message_id(position: Position, *ack_set: int) -> pb.MessageIdData:
    return pb.MessageIdData(ledgerId=position.ledger_id, entryId=position.entry_id, ack_set=ack_set)


async def test_consumers_take_turns_of_twenty_entries(dispatch_rig: OpenRig) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        await rig.numbered(100)
        one = rig.join(subscription, SHARED, "one", permits=0)
        two = rig.join(subscription, SHARED, "two", permits=0)
        one.flow(1000)
        two.flow(1000)
        await rig.settle()
        assert one.payloads == numbers(0, 20) + numbers(40, 20) + numbers(80, 20)
        assert two.payloads == numbers(20, 20) + numbers(60, 20)
        assert one.outbox.writes == 1, "one write for all of a batch"


async def test_what_found_no_permits_waits_and_goes_first(dispatch_rig: OpenRig) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        client = rig.join(subscription, SHARED, permits=4)
        await rig.publish(*(message(b"%d" % n, batch=2) for n in range(6)))
        await rig.settle()
        assert client.new() == numbers(0, 2)
        assert statistics_of(subscription).msg_in_replay == 2, "four permits: four entries were read"
        client.flow(100)
        await rig.settle()
        assert client.new() == numbers(2, 4)
        assert statistics_of(subscription).msg_in_replay == 0


async def test_nacks_come_again_with_their_count_and_before_anything_new(dispatch_rig: OpenRig) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        client = rig.join(subscription, SHARED, permits=3)
        positions = await rig.numbered(6)
        await rig.settle()
        client.new()
        client.nack(positions[1], positions[5])
        client.flow(2)
        await rig.settle()
        assert client.new() == [b"1", b"3"], "what it does not have cannot be given back"
        assert [d.message.redelivery_count for d in client.deliveries] == [0, 0, 0, 1, 0]
        client.nack(positions[1])
        client.flow(1)
        await rig.settle()
        assert client.deliveries[-1].message.redelivery_count == 2
        client.ack(positions[1])
        assert client.consumer.redelivered == 2
        assert statistics_of(subscription).consumers[0].msg_redeliver_counter == 2


async def test_what_is_acknowledged_while_it_waits_is_not_sent_again(dispatch_rig: OpenRig) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        client = rig.join(subscription, SHARED, permits=3)
        positions = await rig.numbered(4)
        await rig.settle()
        client.nack(*positions[:3])
        client.ack(positions[1])
        client.flow(10)
        await rig.settle()
        assert client.payloads == [*numbers(0, 3), b"0", b"2", b"3"]
        assert client.consumer.unacked == 3


async def test_redeliver_all_gives_everything_back_at_once(dispatch_rig: OpenRig) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        client = rig.join(subscription, SHARED, permits=6)
        await rig.numbered(3)
        await rig.settle()
        assert client.consumer.unacked == 3
        subscription.consumers.redeliver(client.consumer, None, None)
        await rig.settle()
        assert client.payloads == numbers(0, 3) * 2
        assert [d.message.redelivery_count for d in client.deliveries[3:]] == [1, 1, 1]
        assert client.consumer.unacked == 3


async def test_what_a_consumer_leaves_behind_goes_to_the_others_without_a_count(
    dispatch_rig: OpenRig,
) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        first = rig.join(subscription, SHARED, permits=5)
        await rig.numbered(5)
        await rig.settle()
        second = rig.join(subscription, SHARED)
        first.ack(first.positions[2])
        first.leave()
        await rig.settle()
        assert second.payloads == [b"0", b"1", b"3", b"4"]
        assert {d.message.redelivery_count for d in second.deliveries} == {0}
        statistics = statistics_of(subscription)
        assert (statistics.unacked_messages, statistics.msg_backlog) == (4, 4)
        assert statistics.msg_out_counter == 9, "counters outlive their consumers"


async def test_the_first_consumer_after_none_starts_over(dispatch_rig: OpenRig) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        first = rig.join(subscription, SHARED)
        await rig.numbered(4)
        await rig.settle()
        first.nack(first.positions[0])
        first.leave()
        await rig.settle()
        assert statistics_of(subscription).msg_in_replay == 0
        second = rig.join(subscription, SHARED)
        await rig.settle()
        assert second.payloads == numbers(0, 4)
        assert {d.message.redelivery_count for d in second.deliveries} == {0}


async def test_consumers_that_change_during_a_read_start_over_once(
    dispatch_rig: OpenRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        first = rig.join(subscription, SHARED, permits=2)
        await rig.numbered(4)
        await rig.settle()
        go_on = trio.Event()
        read = rig.ledger.read

        async def slow_read(*arguments: Any) -> Any:
            await go_on.wait()
            return await read(*arguments)

        monkeypatch.setattr(rig.ledger, "read_cached", lambda *_: [])
        monkeypatch.setattr(rig.ledger, "read", slow_read)
        first.flow(1)
        await rig.settle()
        first.leave()
        second = rig.join(subscription, SHARED)
        go_on.set()
        await rig.settle()
        assert (first.payloads, second.payloads) == (numbers(0, 2), numbers(0, 4))


async def test_priority_levels_are_served_in_order(dispatch_rig: OpenRig) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        low = rig.join(subscription, SHARED, permits=0, priority_level=1)
        high = rig.join(subscription, SHARED, permits=0)
        low.flow(10)
        high.flow(5)
        await rig.numbered(8)
        await rig.settle()
        assert high.payloads == numbers(0, 5)
        assert low.payloads == numbers(5, 3)


async def test_a_consumer_with_too_much_unacknowledged_is_blocked_until_half_of_it_is_done(
    dispatch_rig: OpenRig,
) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription(unacked_max_per_consumer=10)
        client = rig.join(subscription, SHARED, permits=100)
        await rig.numbered(40)
        await rig.settle()
        assert client.new() == numbers(0, 10)
        assert statistics_of(subscription).consumers[0].blocked_consumer_on_unacked_msgs
        client.flow(7)
        client.ack(*client.positions[:4])
        await rig.settle()
        assert client.new() == [], "six wait, more than half of ten"
        client.ack(client.positions[4])
        await rig.settle()
        assert client.new() == numbers(10, 5)
        assert client.consumer.permits == 107 - 15, "permits that came in between were put aside, not lost"


async def test_giving_back_lifts_the_block_at_once(dispatch_rig: OpenRig) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription(unacked_max_per_consumer=3)
        client = rig.join(subscription, SHARED, permits=100)
        await rig.numbered(3)
        await rig.settle()
        client.nack(client.positions[1])
        await rig.settle()
        assert client.payloads == [*numbers(0, 3), b"1"]


async def test_a_subscription_with_too_much_unacknowledged_reads_nothing_new(dispatch_rig: OpenRig) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription(unacked_max_per_subscription=10, read_entries_max=5)
        one = rig.join(subscription, SHARED, permits=100)
        await rig.numbered(30)
        await rig.settle()
        assert one.new() == numbers(0, 10)
        assert statistics_of(subscription).blocked_subscription_on_unacked_msgs
        one.nack(one.positions[0])
        await rig.settle()
        assert one.new() == [b"0"], "what is given back still goes out"
        one.ack(*one.positions[1:6])
        await rig.settle()
        assert one.new() == [], "five of ten is not yet below half"
        one.ack(one.positions[6])
        await rig.settle()
        assert one.new()[:1] == [b"10"]


async def test_readers_have_no_unacked_limit(dispatch_rig: OpenRig) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription(durable=False, unacked_max_per_consumer=2)
        client = rig.join(subscription, SHARED, durable=False)
        await rig.numbered(9)
        await rig.settle()
        assert client.payloads == numbers(0, 9)


async def test_acks_of_anything_else_do_no_harm(dispatch_rig: OpenRig) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        client = rig.join(subscription, SHARED)
        positions = await rig.numbered(3)
        await rig.settle()
        strange = [(0, 0), (10**12, 5), (positions[0].ledger_id, 10**9), (2**64 - 1, 2**64 - 1)]
        client.ack(*strange, positions[0], positions[0])
        assert client.consumer.unacked == 2
        assert subscription.backlog() == 2
        client.leave()
        client.ack(positions[1])
        assert subscription.backlog() == 2, "a consumer that left acknowledges nothing"


async def test_an_ack_through_another_consumer_counts_for_the_one_that_was_sent_to(
    dispatch_rig: OpenRig,
) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        one = rig.join(subscription, SHARED)
        await rig.numbered(2)
        await rig.settle()
        two = rig.join(subscription, SHARED)
        two.ack(*one.positions)
        assert (one.consumer.unacked, two.consumer.unacked) == (0, 0)
        assert statistics_of(subscription).unacked_messages == 0


async def test_an_entry_acknowledged_before_it_was_read_is_not_sent(dispatch_rig: OpenRig) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        client = rig.join(subscription, SHARED, permits=2)
        positions = await rig.numbered(6)
        await rig.settle()
        client.ack(positions[3])
        client.flow(10)
        await rig.settle()
        assert client.payloads == [b"0", b"1", b"2", b"4", b"5"]


async def test_cumulative_acks_are_ignored_with_a_warning(
    dispatch_rig: OpenRig, caplog: pytest.LogCaptureFixture
) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        client = rig.join(subscription, SHARED)
        positions = await rig.numbered(3)
        await rig.settle()
        subscription.acks.acknowledge_cumulative(client.consumer, positions[2])
        assert subscription.backlog() == 3
        assert "cumulative ack on a Shared subscription is ignored" in caplog.text


async def test_what_a_client_does_over_and_over_is_said_once_a_second(
    dispatch_rig: OpenRig, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        client = rig.join(subscription, SHARED)
        (position,) = await rig.numbered(1)
        corrupted = ack_command(client, *[message_id(position)] * 1000)
        corrupted.validation_error = pb.CommandAck.ChecksumMismatch
        for _ in range(3):
            for _ in range(100):
                subscription.acks.acknowledge_cumulative(client.consumer, position)
                subscription.acks.acknowledge_command(client.consumer, corrupted)
            await trio.sleep(1.1)
        lines = [record.getMessage() for record in caplog.records]
        ignored = [line for line in lines if "is ignored" in line]
        assert ["99 more like this" in line for line in ignored] == [False, True, True]
        named = [line for line in lines if "990 others - Reason: ChecksumMismatch" in line]
        assert len(named) == 3
        assert len(lines) == 6


@pytest.mark.parametrize("sub_type", [SHARED, EXCLUSIVE])
async def test_an_ack_set_beyond_any_batch_is_ignored(
    dispatch_rig: OpenRig, caplog: pytest.LogCaptureFixture, sub_type: str
) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        client = rig.join(subscription, sub_type)
        first, second = await rig.publish(message(b"a", batch=3), message(b"b", batch=3))
        await rig.settle()
        unacked = client.consumer.unacked
        longest = [0b110, *[0] * (ACK_SET_WORDS_MAX - 1)]
        subscription.acks.acknowledge_command(
            client.consumer, ack_command(client, message_id(second, *longest, 0))
        )
        assert subscription.cursor.ack_set(second) is None
        assert client.consumer.unacked == unacked
        assert f"an ack set of {ACK_SET_WORDS_MAX + 1} words is ignored" in caplog.text
        subscription.acks.acknowledge_command(
            client.consumer, ack_command(client, message_id(second, *longest))
        )
        assert subscription.cursor.ack_set(second) == [0b110]
        if sub_type == EXCLUSIVE:
            up_to = ack_command(client, message_id(second, *longest, 0b1))
            up_to.ack_type = pb.CommandAck.Cumulative
            subscription.acks.acknowledge_command(client.consumer, up_to)
            assert (subscription.cursor.mark_delete, subscription.cursor.ack_set(second)) == (first, [0b110])
        with pytest.raises(NotAllowed, match="An ack set of 1025 words is longer than 1024"):
            await subscription.seek(first, ack_set=[*longest, 0])
        assert not client.consumer.closed


async def test_a_batch_that_claims_too_many_messages_counts_as_the_largest(dispatch_rig: OpenRig) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription(unacked_max_per_consumer=0, unacked_max_per_subscription=0)
        client = rig.join(subscription, SHARED, permits=100_000)
        (position,) = await rig.publish(message(b"batch", batch=2**31 - 1))
        await rig.settle()
        assert (client.consumer.unacked, client.consumer.permits) == (65_536, 100_000 - 65_536)
        subscription.acks.acknowledge_command(
            client.consumer, ack_command(client, message_id(position, 0b110))
        )
        assert client.consumer.unacked == 2
        client.ack(position)
        assert (client.consumer.unacked, subscription.backlog()) == (0, 0)


async def test_parts_of_a_batch(dispatch_rig: OpenRig) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        client = rig.join(subscription, SHARED, permits=100)
        (position,) = await rig.publish(message(b"batch", batch=10))
        await rig.settle()
        assert client.consumer.unacked == 10
        subscription.acks.acknowledge_command(
            client.consumer, ack_command(client, message_id(position, 0b11_1111_0000))
        )
        assert client.consumer.unacked == 6
        subscription.acks.acknowledge_command(
            client.consumer, ack_command(client, message_id(position, 0b11_1111_1000))
        )
        assert client.consumer.unacked == 6, "acknowledged before"
        client.nack(position)
        await rig.settle()
        again = client.deliveries[-1].message
        assert list(again.ack_set) == [0b11_1111_0000]
        assert (again.redelivery_count, client.consumer.redelivered) == (1, 6)
        assert (client.consumer.unacked, client.consumer.permits) == (6, 100 - 10 - 6)
        client.ack(position)
        assert client.consumer.unacked == 0
        assert subscription.backlog() == 0


async def test_the_last_part_of_a_batch_completes_it(dispatch_rig: OpenRig) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        client = rig.join(subscription, SHARED)
        (position,) = await rig.publish(message(b"batch", batch=3))
        await rig.settle()
        for left in (0b110, 0b100, 0):
            subscription.acks.acknowledge_command(
                client.consumer, ack_command(client, message_id(position, left))
            )
        assert client.consumer.unacked == 0
        assert not len(client.consumer.pending)
        assert subscription.backlog() == 0


async def test_parts_of_batches_are_ignored_where_that_is_switched_off(dispatch_rig: OpenRig) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription(batch_index_acks=False)
        client = rig.join(subscription, SHARED)
        (position,) = await rig.publish(message(b"batch", batch=3))
        await rig.settle()
        subscription.acks.acknowledge_command(
            client.consumer, ack_command(client, message_id(position, 0b100))
        )
        assert client.consumer.unacked == 3
        assert subscription.cursor.ack_set(position) is None


async def test_transactions_are_refused_and_validation_errors_acknowledged(
    dispatch_rig: OpenRig, caplog: pytest.LogCaptureFixture
) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        client = rig.join(subscription, SHARED)
        positions = await rig.numbered(2)
        await rig.settle()
        for halves in ({"txnid_most_bits": 1, "txnid_least_bits": 2}, {"txnid_least_bits": 2}):
            with pytest.raises(NotAllowed, match="acknowledge without a transaction"):
                subscription.acks.acknowledge_command(
                    client.consumer, ack_command(client, message_id(positions[0]), **halves)
                )
        assert subscription.backlog() == 2
        with caplog.at_level(logging.WARNING, "geminga.broker"):
            subscription.acks.acknowledge_command(
                client.consumer,
                ack_command(
                    client, message_id(positions[1]), validation_error=pb.CommandAck.DecompressionError
                ),
            )
        assert subscription.backlog() == 1
        assert f"{positions[1]} - Reason: DecompressionError" in caplog.text


async def test_the_number_of_consumers_may_be_limited(dispatch_rig: OpenRig) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription(consumers_max=1)
        rig.join(subscription, SHARED)
        consumer, _ = rig.consumer(SHARED)
        with pytest.raises(ConsumerBusy, match="^Subscription reached max consumers limit$"):
            subscription.add_consumer(consumer)


async def test_a_full_outbox_gets_nothing_while_others_do(dispatch_rig: OpenRig) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        full = rig.join(subscription, SHARED)
        full.outbox.writable = False
        free = rig.join(subscription, SHARED, permits=2)
        await rig.numbered(5)
        await rig.settle()
        assert (free.payloads, full.payloads) == (numbers(0, 2), [])
        full.outbox.has_room_again()
        await rig.settle()
        assert full.payloads == numbers(2, 3)


async def test_all_chunks_of_a_message_go_to_one_consumer_in_order(dispatch_rig: OpenRig) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription(round_robin_entries_max=1)
        one = rig.join(subscription, SHARED, permits=3)
        two = rig.join(subscription, SHARED, permits=3)
        await rig.publish(
            *(message(b"%d-%d" % (m, c), sequence_id=m, chunk=(c, 4)) for c in range(4) for m in (1, 2))
        )
        await rig.settle()
        for _ in range(8):
            one.flow(1)
            two.flow(1)
            await rig.settle()
        assert one.consumer.chunks_out + two.consumer.chunks_out == 8
        received = [*one.payloads, *two.payloads]
        assert len(received) == 8
        for client in (one, two):
            by_message = [[p for p in client.payloads if p.startswith(b"%d-" % m)] for m in (1, 2)]
            assert all(chunks in ([], sorted(chunks)) and len(chunks) in (0, 4) for chunks in by_message)


async def test_chunks_that_wait_for_their_owner_do_not_hold_up_the_others(
    dispatch_rig: OpenRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription(read_entries_max=2)
        owner = rig.join(subscription, SHARED, permits=1)
        await rig.publish(message(b"c0", sequence_id=7, chunk=(0, 6)))
        await rig.settle()
        other = rig.join(subscription, SHARED, permits=100)
        await rig.publish(*(message(b"c%d" % c, sequence_id=7, chunk=(c, 6)) for c in range(1, 5)))
        await rig.numbered(5)
        await rig.settle()
        assert (owner.payloads, other.payloads) == ([b"c0"], numbers(0, 5))

        # The owner has permits again while a read is under way that brings the last chunk.
        read_cached = rig.ledger.read_cached

        def flows_meanwhile(*arguments: Any) -> Any:
            if owner.consumer.permits == 0:
                owner.flow(100)
            return read_cached(*arguments)

        monkeypatch.setattr(rig.ledger, "read_cached", flows_meanwhile)
        await rig.publish(message(b"c5", sequence_id=7, chunk=(5, 6)))
        await rig.settle()
        assert owner.payloads == [b"c%d" % c for c in range(6)]
        assert other.payloads == numbers(0, 5)


async def test_chunks_of_an_owner_that_left_go_to_another(dispatch_rig: OpenRig) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        owner = rig.join(subscription, SHARED, permits=1)
        await rig.publish(*(message(b"c%d" % c, sequence_id=7, chunk=(c, 3)) for c in range(3)))
        await rig.settle()
        other = rig.join(subscription, SHARED, permits=100)
        await rig.settle()
        assert (owner.payloads, other.payloads) == ([b"c0"], [])
        owner.leave()
        await rig.settle()
        assert other.payloads == [b"c0", b"c1", b"c2"]


async def test_a_wait_for_the_next_try_that_ends_before_the_sleep_is_not_forgotten(
    dispatch_rig: OpenRig, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription(read_retry_ms_min=1000)
        client = rig.join(subscription, SHARED)
        dispatcher = subscription.consumers.dispatcher
        assert dispatcher is not None
        with monkeypatch.context() as broken:
            broken.setattr(rig.ledger, "read_cached", lambda *_: [])
            broken.setattr(rig.ledger, "read", failing_read)
            await rig.numbered(1)
            await rig.settle()
        original = dispatcher.run_round

        async def slow_round() -> None:
            await original()
            autojump_clock.jump(1.5)

        dispatcher.run_round = slow_round  # type: ignore[method-assign]
        subscription.wake()
        await rig.settle()
        assert client.payloads == [b"0"]


async def failing_read(*_: object, **_named: object) -> object:
    raise LedgerNotFound("ledger 7 is gone")


async def test_a_failed_read_is_said_once_and_tried_again_later(
    dispatch_rig: OpenRig,
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        await rig.numbered(3)
        with monkeypatch.context() as patch:
            patch.setattr(rig.ledger, "read_cached", lambda *_: [])
            patch.setattr(rig.ledger, "read", failing_read)
            client = rig.join(subscription, SHARED)
            await rig.settle()
            started_ms = rig.now_ms()
            await wait_ms(rig, 50_000)
            assert caplog.text.count("cannot be read") == 1
            assert "ledger 7 is gone" in caplog.text
            assert client.payloads == []
        while not client.payloads:
            await wait_ms(rig, 100)
        assert client.payloads == numbers(0, 3)
        assert 104_000 <= rig.now_ms() - started_ms <= 106_000, "after 15, 30 and 60 seconds"


async def test_a_failed_read_of_what_is_to_go_out_again_is_tried_again_too(
    dispatch_rig: OpenRig, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        client = rig.join(subscription, SHARED)
        positions = await rig.numbered(3)
        await rig.settle()
        with monkeypatch.context() as patch:
            patch.setattr(rig.ledger, "read_positions", failing_read)
            client.nack(positions[1])
            await wait_ms(rig, 14_000)
            client.flow(1)
        await wait_ms(rig, 900)
        assert len(client.payloads) == 3
        await wait_ms(rig, 200)
        assert client.payloads == [*numbers(0, 3), b"1"]


async def wait_ms(rig: Rig, duration_ms: int) -> None:
    await rig.clock.sleep_until_ms(rig.now_ms() + duration_ms)
    await rig.settle()


async def test_skipping_a_partly_acknowledged_batch_takes_what_was_left_of_it_off_the_books(
    dispatch_rig: OpenRig,
) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        client = rig.join(subscription, SHARED)
        batch, single = await rig.publish(message(batch=4), message())
        await rig.settle()
        subscription.acks.acknowledge_command(client.consumer, ack_command(client, message_id(batch, 0b1000)))
        assert client.consumer.unacked == 2
        subscription.acks.skip_to(batch)
        assert client.consumer.unacked == statistics_of(subscription).unacked_messages == 1
        client.ack(single)
        assert client.consumer.unacked == 0
