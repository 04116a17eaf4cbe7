"""Permits, the unacked limit, and notices, on one consumer alone."""

from __future__ import annotations

from typing import Any

from geminga import limits
from geminga.broker.dispatch.consumer import Consumer
from geminga.wire import pulsar_pb2 as pb
from tests.broker.dispatch_rig import FakeOutbox


def consumer(*, unacked_max: int = 0, **fields: Any) -> Consumer:
    command = pb.CommandSubscribe(
        topic="persistent://public/default/t",
        subscription="s",
        subType=pb.CommandSubscribe.Shared,
        consumer_id=3,
        request_id=1,
        consumer_name="c",
        **fields,
    )
    made = Consumer(command, FakeOutbox(), address="127.0.0.1:9")  # type: ignore[arg-type]
    made.unacked_max = unacked_max
    return made


def test_capacity_is_what_permits_and_the_limit_leave() -> None:
    c = consumer(unacked_max=10)
    assert c.capacity() == 0
    assert c.flow(100, 5)
    assert c.capacity() == 10
    c.sent(entries=2, messages=8, bytes_sent=100, now_ms=6)
    c.add_unacked(8)
    assert (c.permits, c.capacity(), c.blocked) == (92, 2, False)
    c.add_unacked(3)
    assert (c.capacity(), c.blocked) == (0, True)


def test_permits_of_a_blocked_consumer_are_put_aside() -> None:
    c = consumer(unacked_max=10)
    c.flow(5, 1)
    c.add_unacked(10)
    assert not c.flow(7, 2)
    assert c.permits == 5
    c.unacked = 6
    assert not c.unblock_below(5)
    c.unacked = 5
    assert c.unblock_below(5)
    assert not c.unblock_below(5)
    assert (c.permits, c.permits_put_aside, c.capacity()) == (12, 0, 5)


def test_permits_do_not_overflow() -> None:
    c = consumer()
    c.flow(2**32 - 1, 1)
    c.flow(2**32 - 1, 1)
    assert c.permits == limits.PERMITS_MAX


def test_an_outbox_that_is_full_or_closed_leaves_no_capacity() -> None:
    c = consumer()
    c.flow(5, 1)
    outbox: Any = c.outbox
    outbox.writable = False
    assert c.capacity() == 0
    outbox.writable = True
    assert c.capacity() == 5
    c.closed = True
    assert c.capacity() == 0


def test_average_messages_follow_slowly() -> None:
    c = consumer()
    c.sent(1, 100, 1, 1)
    c.sent(1, 1, 1, 1)
    assert round(c.average_messages) == 90


def test_its_text_is_pulsars() -> None:
    assert str(consumer()) == (
        "Consumer{subscription=PersistentSubscription{topic=persistent://public/default/t, name=s}, "
        "consumerId=3, consumerName=c, address=127.0.0.1:9}"
    )
