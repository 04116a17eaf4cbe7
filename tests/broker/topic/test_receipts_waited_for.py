"""The bookie is told which publishers wait for their receipts: those with nothing else on its way."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from geminga.broker.topic.producer import Producer
from tests.broker.dispatch_rig import FakeOutbox
from tests.broker.topics_rig import open_topics, run_of, send, topic_of


async def test_only_a_publisher_with_one_entry_on_its_way_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_topics(bookie_runs=False) as rig:
        topic = await topic_of(rig)
        hurried: list[int] = []
        at = 0
        monkeypatch.setattr(rig.bookie.journals, "hurry", lambda: hurried.append(at))
        producers = []
        for number in range(2):
            name = f"p{number}"
            producer = Producer(number, name, FakeOutbox(), message_bytes_max=2**22)  # type: ignore[arg-type]
            await topic.add_producer(producer, None)
            producers.append(producer)
        first, second = producers
        for at, producer in enumerate([first, first, first, second, second]):
            topic.publishing.publish(producer, send(at))
        assert hurried == [0, 3]
        durable = trio.Event()
        first.when_idle(durable.set)
        await rig.nursery.start(rig.bookie.run)
        await durable.wait()
        at = 5
        topic.publishing.publish(first, send(at))
        assert hurried == [0, 3, 5]
        await wait_all_tasks_blocked()
        at = 6
        topic.publishing.publish_run(first, run_of(send(6), send(7)))
        assert hurried == [0, 3, 5], "several at once: it does not wait for each"
