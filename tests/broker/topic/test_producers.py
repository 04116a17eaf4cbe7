"""Who may produce: duplicate names, access modes and the topic epoch, with Pulsar's outcomes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio

from geminga.broker.topic.producer import Producer
from geminga.broker.topic.producers import AccessMode, Producers
from geminga.errors import ProducerBusy, ProducerFenced


def producer(name: str, mode: AccessMode = AccessMode.SHARED, *, producer_id: int = 1, epoch: int = 0) -> Any:
    outbox: Any = SimpleNamespace(closed=False)
    return Producer(producer_id, name, outbox, message_bytes_max=1, access_mode=mode, epoch=epoch)


def test_shared_producers_join_and_a_name_is_taken_once() -> None:
    producers = Producers("persistent://public/default/t", None)
    assert producers.admit(producer("a"), None) == []
    assert producers.admit(producer("b"), None) == []
    with pytest.raises(ProducerBusy, match=r"Producer with name 'a' is already connected to topic"):
        producers.admit(producer("a"), None)
    assert len(producers) == 2
    assert producers.epoch is None


def test_a_reconnect_with_a_higher_epoch_replaces_its_predecessor() -> None:
    producers = Producers("t", None)
    first = producer("a", epoch=0)
    producers.admit(first, None)
    second = producer("a", epoch=1)
    second.outbox = first.outbox
    assert producers.admit(second, None) == []
    assert list(producers) == [second]
    assert first.closed


def test_a_name_is_free_again_when_its_connection_is_dead() -> None:
    producers = Producers("t", None)
    first = producer("a")
    producers.admit(first, None)
    first.outbox.closed = True
    second = producer("a")
    assert producers.admit(second, None) == []
    assert list(producers) == [second]


def test_exclusive_refuses_and_is_refused() -> None:
    producers = Producers("t", None)
    shared = producer("s")
    producers.admit(shared, None)
    with pytest.raises(ProducerFenced, match="Topic has existing shared producers"):
        producers.admit(producer("x", AccessMode.EXCLUSIVE), None)
    producers.remove(shared)
    assert producers.admit(producer("x", AccessMode.EXCLUSIVE), None) == []
    assert producers.epoch == 0
    with pytest.raises(ProducerFenced, match="existing exclusive producer: x"):
        producers.admit(producer("y", AccessMode.EXCLUSIVE), None)
    with pytest.raises(ProducerBusy, match="existing exclusive producer: x"):
        producers.admit(producer("s2"), None)


def test_fencing_throws_everyone_out_and_moves_the_epoch() -> None:
    producers = Producers("t", 4)
    a, b = producer("a"), producer("b")
    producers.admit(a, None)
    producers.admit(b, None)
    fencing = producer("f", AccessMode.EXCLUSIVE_WITH_FENCING)
    assert producers.admit(fencing, None) == [a, b]
    assert list(producers) == [fencing]
    assert producers.epoch == 5
    with pytest.raises(ProducerFenced, match="Current epoch: 5, Producer epoch: 4"):
        producers.admit(producer("old", AccessMode.EXCLUSIVE), 4)


async def test_waiting_producers_follow_one_another_in_their_order() -> None:
    producers = Producers("t", None)
    first = producer("first", AccessMode.EXCLUSIVE)
    producers.admit(first, None)
    order: list[str] = []

    async def wait(name: str) -> None:
        waiting = producer(name, AccessMode.WAIT_FOR_EXCLUSIVE)
        assert producers.admit(waiting, None) is None
        await producers.wait(waiting)
        order.append(name)
        producers.remove(waiting)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, "second")
        await trio.testing.wait_all_tasks_blocked()
        async with trio.open_nursery() as leaving:
            gone = producer("gone", AccessMode.WAIT_FOR_EXCLUSIVE)
            leaving.start_soon(producers.wait, gone)
            await trio.testing.wait_all_tasks_blocked()
            leaving.cancel_scope.cancel()
        nursery.start_soon(wait, "third")
        await trio.testing.wait_all_tasks_blocked()
        assert producers.waiting_count == 2
        producers.remove(first)
    assert order == ["second", "third"]
    assert producers.epoch == 2
