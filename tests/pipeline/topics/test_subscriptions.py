"""A stream's durable subscription under unloads, lost brokers, deleted topics, and beside an application."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pulsar
import pytest

from geminga.pipeline.errors import DataLost, PipelineError
from geminga.pipeline.topics.streaming import Offsets, StreamPlan
from tests.e2e.admin_http import Admin, topic_path
from tests.e2e.broker_process import BrokerProcess
from tests.e2e.conftest import SETTINGS
from tests.e2e.waiting import eventually, receive
from tests.pipeline.conftest import Topics
from tests.pipeline.topics.test_topics import read_values

PARTITIONS = 4
UNLOADS = 10
SUBSCRIPTION = "warehouse"
DESCRIPTORS_MAX = 2
"""For a plan of any number of partitions with subscriptions, on one broker."""

Plans = Callable[..., StreamPlan]


@pytest.fixture
def plans(topics: Topics, topic: str) -> Iterator[Plans]:
    made: list[StreamPlan] = []

    def make(**options: str) -> StreamPlan:
        given = {"startingOffsets": "earliest", "predefinedSubscription": SUBSCRIPTION} | options
        made.append(StreamPlan(topics.options(topic, **given)))
        return made[-1]

    yield make
    for plan in made:
        plan.close()


class Reading:
    """What a stream does with each trigger."""

    def __init__(self, topics: Topics, plan: StreamPlan) -> None:
        self._topics = topics
        self._plan = plan
        self.offsets: Offsets = plan.initial()
        self.values: list[bytes] = []

    def trigger(self) -> None:
        end = self._plan.latest(self.offsets, limited=False)
        for wanted in self._plan.ranges(self.offsets, end):
            self.values += read_values(self._topics, wanted)
        self.offsets = end


def parts(topic: str) -> list[str]:
    return [f"{topic}-partition-{number}" for number in range(PARTITIONS)]


def unload(admin: Admin, topic: str) -> None:
    assert admin.put(f"/admin/v2/{topic_path(topic)}/unload").status == 204


def delete(admin: Admin, topic: str) -> None:
    assert admin.delete(f"/admin/v2/{topic_path(topic)}?force=true").status == 204


def test_ten_unloads_in_a_row_cost_nothing(topics: Topics, admin: Admin, topic: str, plans: Plans) -> None:
    admin.create_partitions(topic, PARTITIONS)
    reading = Reading(topics, plans())
    sent: list[bytes] = []
    for number in range(UNLOADS):
        some = [b"%d" % index for index in range(number * 20, number * 20 + 20)]
        topics.write(topic, {"value": some}, batchRows="3")
        sent += some
        for part in parts(topic):
            unload(admin, part)
        reading.trigger()
    for part in parts(topic):
        unload(admin, part)
    reading.trigger()
    assert sorted(reading.values, key=int) == sent
    assert [admin.backlog(part, SUBSCRIPTION) for part in parts(topic)] == [0] * PARTITIONS


def test_unloads_without_news_end_nothing(topics: Topics, admin: Admin, topic: str, plans: Plans) -> None:
    topics.write(topic, {"value": [b"a"]})
    reading = Reading(topics, plans())
    for _ in range(3):
        reading.trigger()
        unload(admin, topic)
    assert reading.values == [b"a"]
    topics.write(topic, {"value": [b"b"]})
    reading.trigger()
    reading.trigger()
    assert reading.values == [b"a", b"b"]
    assert admin.backlog(topic, SUBSCRIPTION) == 0


@pytest.mark.parametrize("first", ["stream", "application"])
@pytest.mark.parametrize("is_partitioned", [True, False], ids=["partitioned", "single"])
def test_an_applications_failover_consumers_get_everything_beside_a_stream(
    topics: Topics,
    admin: Admin,
    client: pulsar.Client,
    topic: str,
    plans: Plans,
    first: str,
    is_partitioned: bool,
) -> None:
    if is_partitioned:
        admin.create_partitions(topic, PARTITIONS)
    else:
        assert admin.put(f"/admin/v2/{topic_path(topic)}").status == 204

    def subscribe() -> pulsar.Consumer:
        return client.subscribe(
            topic,
            SUBSCRIPTION,
            pulsar.ConsumerType.Failover,
            initial_position=pulsar.InitialPosition.Earliest,
        )

    if first == "application":
        consumer = subscribe()
        reading = Reading(topics, plans())
    else:
        reading = Reading(topics, plans())
        consumer = subscribe()
    sent = [b"%d" % number for number in range(400)]
    topics.write(topic, {"value": sent}, batchRows="10")
    got = []
    for _ in sent:
        message = receive(consumer)
        consumer.acknowledge(message)
        got.append(message.data())
    reading.trigger()
    reading.trigger()
    assert sorted(got, key=int) == sent
    assert sorted(reading.values, key=int) == sent


def test_an_unload_takes_nothing_from_an_application_that_is_slower_than_the_stream(
    topics: Topics, admin: Admin, client: pulsar.Client, topic: str, plans: Plans
) -> None:
    admin.create_partitions(topic, PARTITIONS)
    consumer = client.subscribe(
        topic,
        SUBSCRIPTION,
        pulsar.ConsumerType.Failover,
        receiver_queue_size=1,
        initial_position=pulsar.InitialPosition.Earliest,
    )
    reading = Reading(topics, plans())
    sent = [b"%d" % number for number in range(400)]
    topics.write(topic, {"value": sent}, batchRows="1")
    for _ in range(3):
        reading.trigger()
        for part in parts(topic):
            unload(admin, part)
    got = set()
    while len(got) < len(sent):
        try:
            # Each unload that a client's attempt to come back meets doubles its pause before the next one.
            message = receive(consumer, 60_000)
        except AssertionError:
            print(
                f"{len(got)} of {len(sent)} came",
                *(admin.subscription(p, SUBSCRIPTION) for p in parts(topic)),
            )
            raise
        consumer.acknowledge(message)
        got.add(message.data())
    assert sorted(reading.values, key=int) == sent


def test_when_an_application_has_left_the_stream_acknowledges(
    topics: Topics, admin: Admin, client: pulsar.Client, topic: str, plans: Plans
) -> None:
    topics.write(topic, {"value": [b"a"] * 10}, batchRows="1")
    consumer = client.subscribe(topic, SUBSCRIPTION, pulsar.ConsumerType.Failover)
    reading = Reading(topics, plans())
    reading.trigger()
    reading.trigger()
    consumer.close()

    def is_acknowledged() -> bool:
        reading.trigger()
        return bool(admin.backlog(topic, SUBSCRIPTION) == 0)

    eventually(is_acknowledged, what="an empty backlog")
    assert reading.values == [b"a"] * 10


def test_a_topic_that_is_deleted_is_not_made_again(
    topics: Topics, admin: Admin, topic: str, plans: Plans
) -> None:
    topics.write(topic, {"value": [b"a"]})
    reading = Reading(topics, plans())
    reading.trigger()
    delete(admin, topic)
    for _ in range(2):
        with pytest.raises(PipelineError, match="is not there|is no longer there"):
            reading.trigger()
    assert admin.get(f"/admin/v2/{topic_path(topic)}/stats").status == 404


@pytest.mark.parametrize("unread", [0, 3])
def test_a_topic_that_is_deleted_and_created_again_is_lost_data(
    topics: Topics, admin: Admin, topic: str, plans: Plans, unread: int
) -> None:
    topics.write(topic, {"value": [b"a"] * 5}, batchRows="1")
    plan = plans()
    reading = Reading(topics, plan)
    reading.trigger()
    topics.write(topic, {"value": [b"b"] * unread}, batchRows="1")
    delete(admin, topic)
    topics.write(topic, {"value": [b"c"] * 20}, batchRows="1")
    with pytest.raises(DataLost, match="failOnDataLoss=false"):
        reading.trigger()
    again = plans(failOnDataLoss="false")
    end = again.latest(reading.offsets, limited=False)
    values = [value for each in again.ranges(reading.offsets, end) for value in read_values(topics, each)]
    assert values == [b"c"] * 20


def test_subscriptions_of_many_partitions_share_one_connection(
    topics: Topics, admin: Admin, topic: str, plans: Plans
) -> None:
    partitions = 200
    admin.create_partitions(topic, partitions)
    before = len(os.listdir("/proc/self/fd"))
    plan = plans()
    offsets = plan.initial()
    assert len(offsets) == partitions
    assert plan.latest(offsets, limited=False) == offsets
    assert len(os.listdir("/proc/self/fd")) - before <= DESCRIPTORS_MAX
    stats = admin.get(f"/admin/v2/{topic_path(topic)}-partition-7/stats").json()
    assert len(stats["subscriptions"][SUBSCRIPTION]["consumers"]) == 1


def test_consumers_of_another_type_are_told(
    client: pulsar.Client, topics: Topics, topic: str, plans: Plans
) -> None:
    topics.write(topic, {"value": [b"a"]})
    client.subscribe(topic, SUBSCRIPTION, pulsar.ConsumerType.Shared)
    with pytest.raises(PipelineError, match="consumers of another type may be connected"):
        plans().initial()


def test_the_subscription_is_free_when_the_stream_has_ended(
    client: pulsar.Client, topics: Topics, admin: Admin, topic: str, plans: Plans
) -> None:
    topics.write(topic, {"value": [b"a"]})
    plan = plans()
    plan.initial()
    plan.close()
    eventually(lambda: not admin.subscription(topic, SUBSCRIPTION)["consumers"])
    consumer = client.subscribe(topic, SUBSCRIPTION, pulsar.ConsumerType.Shared)
    assert receive(consumer).data() == b"a"


def test_a_killed_broker_that_is_started_again_is_waited_for(tmp_path: Path) -> None:
    """As long as the readers wait; a large broker is not there within a few seconds."""
    with BrokerProcess(tmp_path / "data", settings=SETTINGS) as process:
        topics = Topics(process.endpoints)
        name = "persistent://public/default/kept"
        options = {"startingOffsets": "earliest", "predefinedSubscription": SUBSCRIPTION}
        plan = StreamPlan(topics.options(name, **options))
        topics.write(name, {"value": [b"a", b"b"]})
        reading = Reading(topics, plan)
        reading.trigger()
        topics.write(name, {"value": [b"c"]})
        process.kill()
        later = threading.Timer(5, process.start)
        later.start()
        reading.trigger()
        later.join()
        plan.close()
        assert reading.values == [b"a", b"b", b"c"]
