"""Metrics of indexes with buckets: Pulsar's names and labels, per subscription and summed."""

from __future__ import annotations

from types import SimpleNamespace

from prometheus_client.parser import text_string_to_metric_families

from geminga.admin.metrics.exposition import exposition
from geminga.broker.flow.statistics import (
    BrokerStatistics,
    BucketOperationStatistics,
    BucketStatistics,
    TopicStatistics,
)

TOPIC = "persistent://public/default/orders"
PREFIX = "pulsar_delayed_message_index_"


def buckets(count: int, *operations: BucketOperationStatistics) -> BucketStatistics:
    return BucketStatistics(buckets=count, loaded=10 * count, stored_bytes=100 * count, operations=operations)


def created(succeeded: int, failed: int = 0) -> BucketOperationStatistics:
    return BucketOperationStatistics("create", succeeded, failed, 70.5, (succeeded - 1, 0, 0, 0, 0, 0, 0, 1))


def subscription(delayed_buckets: BucketStatistics | None, index_bytes: int = 0) -> SimpleNamespace:
    names = ("consumers", "msg_rate_out", "msg_throughput_out", "msg_backlog")
    return SimpleNamespace(
        **dict.fromkeys(names[1:], 0),
        consumers=[],
        delayed_buckets=delayed_buckets,
        delayed_message_index_size_in_bytes=index_bytes,
    )


def page(*topics: TopicStatistics, topic_level: bool = True) -> dict[tuple[str, str], float]:
    """By name and labels but for cluster and namespace."""
    text = "".join(exposition(topics, BrokerStatistics(), cluster="standalone", topic_level=topic_level))
    found: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            shown = {k: v for k, v in sample.labels.items() if k not in ("cluster", "namespace")}
            key = sample.name, ",".join(f"{k}={v}" for k, v in sorted(shown.items()))
            assert key not in found, key
            found[key] = sample.value
    return found


def test_each_subscription_and_the_topic_that_adds_them_up() -> None:
    """As Pulsar's testBucketDelayedIndexMetrics: three buckets each, six together."""
    both = {"a": subscription(buckets(3, created(2, 1)), 5), "b": subscription(buckets(3, created(2)), 7)}
    found = page(TopicStatistics(name=TOPIC, subscriptions={**both, "c": subscription(None, 1)}))
    name = f"{PREFIX}bucket_total"
    assert found[name, f"subscription=a,topic={TOPIC}"] == found[name, f"subscription=b,topic={TOPIC}"] == 3
    assert found[name, f"topic={TOPIC}"] == 6
    assert (name, f"subscription=c,topic={TOPIC}") not in found
    assert found[f"{PREFIX}loaded", f"topic={TOPIC}"] == 60
    assert found[f"{PREFIX}bucket_snapshot_size_bytes", f"topic={TOPIC}"] == 600
    for state, count in (("succeed", 4), ("failed", 1), ("all", 5)):
        assert found[f"{PREFIX}bucket_op_count", f"state={state},topic={TOPIC},type=create"] == count
    latency = f"{PREFIX}bucket_op_latency_ms"
    assert found[latency, f"quantile=50,topic={TOPIC},type=create"] == 2
    assert found[latency, f"quantile=overflow,topic={TOPIC},type=create"] == 2
    assert (latency, f"quantile=100,topic={TOPIC},type=create") not in found
    assert found[f"{latency}_count", f"subscription=a,topic={TOPIC},type=create"] == 2
    assert found[f"{latency}_sum", f"topic={TOPIC},type=create"] == 141
    assert found[f"{PREFIX}size_bytes", f"topic={TOPIC}"] == 13


def test_namespaces_add_up_topics_when_there_is_no_topic_level() -> None:
    topics = [
        TopicStatistics(name=f"{TOPIC}-{n}", subscriptions={"s": subscription(buckets(2, created(1)))})
        for n in range(3)
    ]
    found = page(*topics, topic_level=False)
    assert found[f"{PREFIX}bucket_total", ""] == 6
    assert found[f"{PREFIX}bucket_op_count", "state=all,type=create"] == 3


def test_a_shared_index_counts_once() -> None:
    views = {name: subscription(None, 1000) for name in "abc"}
    found = page(
        TopicStatistics(name=TOPIC, subscriptions=views, delayed_index_bytes=1000, delayed_buckets=buckets(4))
    )
    assert found[f"{PREFIX}size_bytes", f"topic={TOPIC}"] == 1000
    assert found[f"{PREFIX}bucket_total", f"topic={TOPIC}"] == 4


def test_without_buckets_there_are_no_such_metrics() -> None:
    found = page(TopicStatistics(name=TOPIC, subscriptions={"s": subscription(None)}))
    assert not any("bucket" in name for name, _ in found)
