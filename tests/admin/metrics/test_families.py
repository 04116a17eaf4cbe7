"""Families of topics and what is below and above them, and both formats, from structs."""

from __future__ import annotations

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics_families
from prometheus_client.parser import text_string_to_metric_families

from geminga.admin.metrics.exposition import Levels, exposition
from geminga.admin.metrics.families import (
    SUBSCRIPTION_FAMILIES,
    TOPIC_FAMILIES,
    UNLOADED_SUBSCRIPTION_FAMILIES,
    UNLOADED_TOPIC_FAMILIES,
)
from geminga.admin.metrics.figures import Figure, counter, histogram, summary
from geminga.admin.metrics.text import OPEN_METRICS, PLAIN, Format
from geminga.broker.flow.statistics import (
    BrokerStatistics,
    BucketStatistics,
    Classes,
    CursorSavings,
    LatenessStatistics,
    TopicStatistics,
)
from geminga.broker.subscription.statistics import SubscriptionStatistics
from geminga.durations import Durations

NAME = "persistent://public/default/t"


def topic(number: int = 0, **values: object) -> TopicStatistics:
    return TopicStatistics(name=f"{NAME}{number}", **values)  # type: ignore[arg-type]


def page(
    *topics: TopicStatistics,
    levels: Levels = Levels(),  # noqa: B008 - immutable
    text: Format = PLAIN,
    figures: tuple[Figure, ...] = (),
) -> str:
    return "".join(
        exposition(topics, BrokerStatistics(), figures, cluster="c", host="h", levels=levels, text=text)
    )


def values(text: str) -> dict[tuple[str, str], float]:
    """By name and the last label that tells samples apart."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = sample.labels
            of = labels.get("quantile") or labels.get("quota_type") or labels.get("cursor_name") or ""
            found[sample.name, of] = sample.value
    return found


def test_rates_of_storage_count_entries() -> None:
    """Ten entries of fifty messages in five seconds."""
    found = values(
        page(
            topic(
                msg_rate_in=100.0,
                interval_s=5.0,
                entry_sizes=Classes((0, 0, 0, 0, 10, 0, 0, 0, 0), 30_000.0),
                write_latencies=Classes((0, 0, 10, 0, 0, 0, 0, 0, 0, 0), 20.0),
                read_rate=4.0,
                read_throughput=400.0,
            )
        )
    )
    assert found["pulsar_rate_in", ""] == 100
    assert found["pulsar_storage_write_rate", ""] == 2
    assert found["pulsar_broker_storage_write_rate", ""] == 2
    assert found["pulsar_storage_read_rate", ""] == 4
    assert found["pulsar_storage_write_latency_sum", ""] == 20_000
    assert found["pulsar_ml_AddEntryMessagesRate", ""] == 2
    assert found["pulsar_ml_AddEntryBytesRate", ""] == 6000
    assert found["pulsar_ml_AddEntrySucceed", ""] == 10
    assert found["pulsar_ml_AddEntryLatencyBuckets", "1.0_5.0"] == 2
    assert found["pulsar_ml_EntrySizeBuckets", "2048.0_4096.0"] == 2
    assert found["pulsar_ml_ReadEntriesSucceeded", ""] == 20
    assert found["pulsar_ml_ReadEntriesBytesRate", ""] == 400


def test_topics_beyond_the_bound_are_left_out_and_counted() -> None:
    whole = page(topic(0), topic(1))
    one = page(topic(0), topic(1), levels=Levels(series_max=60))
    series = whole.count(f'topic="{NAME}1"')
    assert series > 40
    assert one.count(f'topic="{NAME}0"') == series
    assert one.count(f'topic="{NAME}1"') == 0
    last_first = page(topic(1), topic(0), levels=Levels(series_max=60))
    assert last_first.count(f'topic="{NAME}1"') == series, "those that come first are kept"
    assert values(one)["geminga_metrics_series_dropped", ""] == series
    assert values(one)["pulsar_broker_topics_count", ""] == 2


def test_what_counts_entries_says_so() -> None:
    """A batch is one: 89,987 batched messages were once told as a backlog of 2,881 messages."""
    entries = {"msg_backlog", "msg_backlog_no_delayed", "msg_delayed", "msg_in_replay", "total_msg_expired"}
    texts = [
        family.help
        for family in (*TOPIC_FAMILIES, *SUBSCRIPTION_FAMILIES)
        if family.attribute.rpartition(".")[2] in entries
    ]
    assert len(texts) == 6
    assert all(text.startswith("Entries ") for text in texts)


def test_an_unloaded_topic_has_the_few_figures_that_its_records_tell() -> None:
    waiting = SubscriptionStatistics(name="s", msg_backlog=7, msg_backlog_no_delayed=7, unread_entries=7)
    asleep = topic(1, is_loaded=False, storage_size=700, subscriptions={"s": waiting})
    text = page(topic(0, storage_size=5), asleep)
    found = values(text)
    lines = [line for line in text.splitlines() if f'topic="{NAME}1"' in line]
    assert len(lines) == len(UNLOADED_TOPIC_FAMILIES) + len(UNLOADED_SUBSCRIPTION_FAMILIES) == 12
    assert found["pulsar_subscription_back_log", ""] == found["geminga_subscription_unread", ""] == 7
    assert found["pulsar_broker_storage_size", ""] == 705
    assert found["pulsar_broker_msg_backlog", ""] == 7
    assert found["pulsar_broker_topics_count", ""] == found["pulsar_topics_count", ""] == 1
    only = page(asleep, text=OPEN_METRICS)
    assert {f.name for f in open_metrics_families(only)} >= {"pulsar_subscription_back_log", "pulsar_rate_in"}
    # The bound counts them by what they have.
    assert values(page(asleep, levels=Levels(series_max=12)))["geminga_metrics_series_dropped", ""] == 0
    assert values(page(asleep, levels=Levels(series_max=11)))["geminga_metrics_series_dropped", ""] == 12


def test_the_counts_of_topics_are_the_brokers() -> None:
    counts = BrokerStatistics(topics_loaded=2, topics_unloaded=5, topics_unread=3)
    found = values("".join(exposition((), counts, (), cluster="c")))
    names = ("geminga_topics_stored", "geminga_topics_loaded", "geminga_topics_unread")
    assert [found[name, ""] for name in names] == [7, 2, 3]


def test_the_bound_counts_each_series_of_a_topic() -> None:
    late = LatenessStatistics((1, 10), (3, 1, 0), 0, 20)
    cursor = SubscriptionStatistics(name="s", delayed_lateness=late, delayed_buckets=BucketStatistics())
    busy = topic(0, subscriptions={"s": cursor}, quota_evictions=(1, 2), kept_by="request", kept_bytes=3)
    series = sum(f'topic="{NAME}0"' in line for line in page(busy).splitlines())
    assert values(page(busy, levels=Levels(series_max=series)))["geminga_metrics_series_dropped", ""] == 0
    assert values(page(busy, levels=Levels(series_max=series - 1)))["geminga_metrics_series_dropped", ""] == (
        series
    )


def test_cursors_and_evictions_have_labels_of_their_own() -> None:
    saved = CursorSavings("s", 3, 1, 2, 0, 4, 50, 20)
    text = page(topic(quota_evictions=(2, 0), cursors=[saved]), levels=Levels(cursors=True))
    found = values(text)
    assert found["pulsar_ml_cursor_persistLedgerSucceed", "s"] == 3
    assert found["pulsar_ml_cursor_persistLedgerErrors", "s"] == 1
    assert found["pulsar_ml_cursor_nonContiguousDeletedMessagesRange", "s"] == 4
    assert 'namespace="public/default/persistent",ledger_name="public/default/persistent/t0"' in text
    assert found["pulsar_storage_backlog_quota_exceeded_evictions_total", "size"] == 2
    assert ("pulsar_storage_backlog_quota_exceeded_evictions_total", "time") not in found


def test_only_topics_that_keep_all_messages_say_how_much() -> None:
    text = page(topic(0), topic(1, kept_by="threshold", kept_bytes=500))
    kept = [line for line in text.splitlines() if line.startswith("geminga_compaction_kept_bytes{")]
    assert len(kept) == 1
    assert f'topic="{NAME}1",by="threshold"}} 500.0' in kept[0]


@pytest.mark.parametrize("topics", [0, 3])
def test_both_formats_have_the_same_samples(topics: int) -> None:
    durations = Durations()
    durations.add(3.0)
    durations.measure()
    figures = (
        counter("x_total", 'with a "quote" and a \\', 1),
        counter("y_counts", "a counter without the ending", 1),
        summary("z", "milliseconds", durations.summary(), ("0.5", "1.0"), {"success": "true"}),
        histogram("h", "classes", (1, 2), (3, 0, 1), 9.0),
    )
    rows = [topic(number) for number in range(topics)]
    plain, other = page(*rows, figures=figures), page(*rows, figures=figures, text=OPEN_METRICS)
    assert other.endswith("# EOF\n")

    def lines(text: str) -> list[str]:
        return [line for line in text.splitlines() if not line.startswith("#")]

    assert lines(plain) == lines(other)
    kinds = {family.name: family.type for family in open_metrics_families(other)}
    assert (kinds["x"], kinds["y_counts"], kinds["z"], kinds["h"]) == (
        "counter",
        "gauge",
        "summary",
        "histogram",
    )
    assert "pulsar_in_messages" in kinds if topics else True
    assert "# TYPE pulsar_broker_in_bytes_total gauge\n" in plain
    assert "# TYPE pulsar_broker_in_bytes counter\n" in other
