"""The metrics page and the statistics' JSON, from structs."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any, TypeVar

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from geminga.admin.metrics.exposition import LINES_MAX, Levels, exposition
from geminga.admin.metrics.process import process_figures
from geminga.admin.statistics.stats_json import (
    PartitionedMetadata,
    PartitionedTotal,
    instant_text,
    topic_json,
)
from geminga.broker.flow.statistics import (
    BrokerStatistics,
    Classes,
    PublisherStatistics,
    TopicStatistics,
)
from geminga.broker.subscription.statistics import SubscriptionStatistics

T = TypeVar("T")
TOPIC = "persistent://public/default/orders-partition-3"


def subscription(**values: Any) -> SubscriptionStatistics:
    zeros = {int: 0, float: 0.0, bool: False, str: ""}
    fields = {
        field.name: zeros.get(field.type)
        for field in msgspec.structs.fields(SubscriptionStatistics)
        if field.required
    }
    empty = {"consumers": [], "subscription_properties": {}, "is_durable": True}
    return SubscriptionStatistics(**{**fields, **empty, **values})


def topic(name: str = TOPIC, **values: object) -> TopicStatistics:
    values.setdefault(
        "subscriptions", {"s": subscription(msg_backlog=7, msg_out_counter=3, bytes_out_counter=30)}
    )
    return TopicStatistics(name=name, msg_in_counter=10, storage_size=100, **values)  # type: ignore[arg-type]


def samples(*topics: TopicStatistics, **options: Any) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    slices = exposition(
        topics,
        BrokerStatistics(active_connections=2),
        list(process_figures()),
        cluster="standalone",
        levels=Levels(**options),
    )
    page = "".join(slices)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def drained(slices: Generator[int, None, T]) -> T:
    while True:
        try:
            next(slices)
        except StopIteration as end:
            found: T = end.value
            return found


def labels(**values: str) -> frozenset[tuple[str, str]]:
    return frozenset({"cluster": "standalone", **values}.items())


def test_without_topics_the_broker_is_still_there() -> None:
    found = samples()
    for name in ("pulsar_topics_count", "pulsar_producers_count", "pulsar_rate_in", "pulsar_msg_backlog"):
        assert found[name, labels()] == 0
    assert found["pulsar_broker_topics_count", labels()] == 0
    assert found["pulsar_active_connections", labels(metric="broker_connection", broker="localhost")] == 2
    assert any(name == "process_resident_memory_bytes" for name, _ in found)


def test_topic_and_subscription_series() -> None:
    found = samples(topic())
    whole = labels(namespace="public/default", topic=TOPIC)
    assert found["pulsar_in_messages_total", whole] == 10
    assert found["pulsar_msg_backlog", whole] == 7
    part = labels(namespace="public/default", topic=TOPIC, subscription="s")
    assert found["pulsar_subscription_back_log", part] == 7
    assert found["pulsar_out_messages_total", part] == 3
    assert found["pulsar_topics_count", labels(namespace="public/default")] == 1
    assert found["pulsar_broker_msg_backlog", labels()] == 7


def test_topic_and_partition_as_two_labels() -> None:
    found = samples(topic(), split_partition=True)
    split = labels(namespace="public/default", topic="persistent://public/default/orders", partition="3")
    assert found["pulsar_storage_size", split] == 100


def test_namespace_level_sums_its_topics_and_names_none() -> None:
    found = samples(topic(), topic("persistent://public/default/other"), topics=False)
    assert found["pulsar_storage_size", labels(namespace="public/default")] == 200
    assert not any("topic" in dict(pairs) for _, pairs in found)
    assert not any(name.startswith("pulsar_subscription_") for name, _ in found)


def test_no_slice_of_a_page_writes_many_lines_or_takes_many_topics() -> None:
    taken = 0

    def topics() -> Iterator[TopicStatistics | None]:
        nonlocal taken
        for number in range(3000):
            taken += 1
            yield topic(f"persistent://public/default/t{number}")
            if number % 10 == 9:
                yield None

    page, before = [], 0
    for text in exposition(topics(), BrokerStatistics(), cluster="standalone"):
        page.append(text)
        assert taken - before <= 10
        before = taken
        assert text.count("\n") <= LINES_MAX + 2
    rows = [line for line in "".join(page).splitlines() if line.startswith("pulsar_msg_backlog{")]
    assert len(rows) == 3000


def test_no_slice_writes_the_ledgers_of_many_namespaces() -> None:
    topics = (topic(f"persistent://public/n{number}/t", subscriptions={}) for number in range(3000))
    page = list(exposition(topics, BrokerStatistics(), cluster="standalone"))
    assert max(text.count("\n") for text in page) <= LINES_MAX + 2
    rows = [line for line in "".join(page).splitlines() if line.startswith("pulsar_ml_StoredMessagesSize{")]
    assert rows[-1] == (
        'pulsar_ml_StoredMessagesSize{cluster="standalone",namespace="public/n2999/persistent"} 100.0'
    )
    assert len(rows) == 3000


def test_a_topic_of_many_subscriptions_is_taken_in_slices_too() -> None:
    many = topic(subscriptions={f"s{number}": subscription() for number in range(1000)})
    assert sum(not text for text in exposition([many], BrokerStatistics(), cluster="c")) >= 50
    looked = list(topic_json(many, owner="here"))
    assert sum(looked) == 1000
    assert max(looked) <= 50


def test_classes_of_entry_size_and_write_latency() -> None:
    counted = topic(
        entry_sizes=Classes((1, 2, 3, 4, 5, 6, 7, 8, 9), 1000.0),
        write_latencies=Classes((1, 0, 0, 0, 0, 0, 0, 0, 0, 5), 6.5),
    )
    found = samples(counted)
    whole = labels(namespace="public/default", topic=TOPIC)
    expected = {
        "pulsar_entry_size_le_128": 1,
        "pulsar_entry_size_le_1_mb": 8,
        "pulsar_entry_size_le_overflow": 9,
        "pulsar_entry_size_overflow": 9,
        "pulsar_entry_size_count": 45,
        "pulsar_entry_size_sum": 1000,
        "pulsar_storage_write_latency_le_0_5": 1,
        "pulsar_storage_write_latency_overflow": 5,
        "pulsar_storage_write_latency_count": 6,
        "pulsar_storage_ledger_write_latency_sum": 6500,  # microseconds, as on the real broker
    }
    assert {name: found[name, whole] for name in expected} == expected


@pytest.mark.parametrize("name", ['quo"te', "back\\slash", "line\nbreak", "ünï"])
def test_odd_names_survive(name: str) -> None:
    found = samples(topic(f"persistent://public/default/{name}"))
    assert (
        "pulsar_storage_size",
        labels(namespace="public/default", topic=f"persistent://public/default/{name}"),
    ) in found


def test_a_topic_sums_what_its_subscriptions_sent() -> None:
    shown = drained(
        topic_json(
            topic(
                subscriptions={
                    "a": subscription(msg_out_counter=1, bytes_out_counter=10, active_consumer_name=None),
                    "b": subscription(msg_out_counter=2, bytes_out_counter=20, is_durable=False),
                },
                publishers=[
                    PublisherStatistics(
                        producer_id=1,
                        producer_name="p",
                        access_mode="Shared",
                        address="127.0.0.1:5",
                        client_version="c",
                        connected_since=1_700_000_000_120,
                    )
                ],
            ),
            owner="here:8080",
        )
    )
    decoded = msgspec.json.decode(msgspec.json.encode(shown))
    assert decoded["msgOutCounter"] == 3
    assert decoded["bytesOutCounter"] == 30
    assert decoded["ownerBroker"] == "here:8080"
    assert decoded["subscriptions"]["b"]["isDurable"] is decoded["subscriptions"]["b"]["durable"] is False
    assert "activeConsumerName" not in decoded["subscriptions"]["a"], "left out as Pulsar does, not null"
    assert decoded["publishers"][0]["address"] == "/127.0.0.1:5"
    assert decoded["publishers"][0]["connectedSince"] == "2023-11-14T22:13:20.12Z"


def test_a_partitioned_topic_is_the_sum_of_its_parts_which_stay_as_they_are() -> None:
    parts = {
        f"{TOPIC[:-1]}{index}": drained(topic_json(topic(msg_rate_in=1.5), owner="here"))
        for index in range(3)
    }
    added = PartitionedTotal()
    for part in parts.values():
        for _ in added.add(part):
            pass
    total = added.json(PartitionedMetadata(partitions=3))
    assert total.msg_in_counter == 30
    assert total.msg_rate_in == 4.5
    assert total.msg_out_counter == 9
    assert total.subscriptions["s"].msg_backlog == 21
    assert total.partitions == {}
    assert all(part.msg_in_counter == 10 for part in parts.values())
    assert all(part.subscriptions["s"].msg_backlog == 7 for part in parts.values())


@pytest.mark.parametrize(
    ("time_ms", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (1_795_229_399_450, "2026-11-21T02:49:59.45Z"),
        (1_795_229_399_387, "2026-11-21T02:49:59.387Z"),
    ],
)
def test_times_as_java_prints_them(time_ms: int, text: str) -> None:
    assert instant_text(time_ms) == text
