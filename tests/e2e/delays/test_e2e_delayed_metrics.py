"""What a running broker tells of its delayed indexes: /metrics, stats, stats-internal, its log."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pulsar
import pytest
from prometheus_client.parser import text_string_to_metric_families
from pulsar import ConsumerType

from tests.e2e.admin_http import Admin, topic_path
from tests.e2e.broker_process import ROOT, BrokerProcess
from tests.e2e.waiting import eventually, now_ms, receive

pytestmark = pytest.mark.geminga_only
Make = Callable[..., pulsar.Client]
SETTINGS = {
    "delayedDeliveryTrackerFactoryClassName": "org.apache.pulsar.broker.delayed."
    "BucketDelayedDeliveryTrackerFactory",
    "delayedDeliveryMinIndexCountPerBucket": "20",
    "delayedDeliveryMaxNumBuckets": "-1",
    "managedLedgerMaxEntriesPerLedger": "20",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
}
KINDS = {
    "shared": {"isDelayedDeliveryDeliverAtTimeStrict": "true"},
    "own": {
        "isDelayedDeliveryDeliverAtTimeStrict": "false",
        "delayedDeliveryTickTimeMillis": "1000",
        "delayedDeliverySharedIndexEnabled": "false",
    },
    "by-namespace": {"exposeTopicLevelMetricsInPrometheus": "false"},
}
"""One index for all subscriptions, and delivery in time; an index for each, and up to a second early; a page
that names no topic.
"""
PREFIX = "pulsar_delayed_message_index_"
BUCKET_KEY = "#pulsar.internal.delayed.bucket_"
SHARED = pytest.mark.parametrize("process", ["shared"], indirect=True, scope="module")
OWN = pytest.mark.parametrize("process", ["own"], indirect=True, scope="module")

Page = dict[tuple[str, str], float]


@pytest.fixture(scope="module")
def process(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess]:
    settings = SETTINGS | KINDS[request.param]
    data_dir = tmp_path_factory.mktemp(request.param) / "data"
    with BrokerProcess(data_dir, settings=settings, arguments=["--chaos"]) as process:
        yield process


@pytest.fixture
def web(process: BrokerProcess) -> Admin:
    return Admin(process.endpoints.web_url)


@pytest.fixture
def client(process: BrokerProcess, make_client: Make) -> pulsar.Client:
    return make_client(process.endpoints.service_url)


def scrape(web: Admin, topic: str | None) -> tuple[Page, dict[str, str]]:
    """A topic's samples, or those without one, by name and labels but for those that all have; and the type
    of each family.
    """
    answer = web.get("/metrics")
    assert answer.status == 200
    found: Page = {}
    kinds = {}
    for family in text_string_to_metric_families(answer.text):
        kinds[family.name] = family.type
        for sample in family.samples:
            labels = {k: v for k, v in sample.labels.items() if k not in ("cluster", "namespace", "topic")}
            key = sample.name, ",".join(f"{k}={v}" for k, v in labels.items())
            if sample.labels.get("topic") == topic:
                assert key not in found, key
                found[key] = sample.value
    return found, kinds


def metrics(web: Admin, topic: str | None) -> Page:
    return scrape(web, topic)[0]


def publish(client: pulsar.Client, topic: str, count: int, delay: timedelta = timedelta(days=1)) -> None:
    producer = client.create_producer(topic)
    for number in range(count):
        producer.send_async(b"%d" % number, lambda *_: None, deliver_after=delay)
    producer.flush()


def named_buckets(web: Admin, topic: str) -> dict[str, dict[str, int]]:
    """By cursor, as `geminga topics stats-internal` prints them."""
    answer = web.get(f"/admin/v2/{topic_path(topic)}/internalStats").json()
    return {
        name: {key: value for key, value in cursor["properties"].items() if key.startswith(BUCKET_KEY)}
        for name, cursor in answer["cursors"].items()
    }


def ledgers_on_disk(process: BrokerProcess) -> set[int]:
    """The broker is stopped for it and started again."""
    assert process.stop() == 0
    command = [sys.executable, "-m", "geminga", "bookie", "ledgers", "--data-dir", str(process.data_dir)]
    listed = subprocess.run([*command, "--json"], capture_output=True, check=True, text=True, cwd=ROOT)
    process.start()
    ledgers = map(json.loads, listed.stdout.splitlines())
    return {ledger["ledger"] for ledger in ledgers if ledger["state"] != "deleted"}


def subscribed(client: pulsar.Client, topic: str, *names: str) -> list[pulsar.Consumer]:
    return [client.subscribe(topic, name, ConsumerType.Shared) for name in names]


@SHARED
def test_a_shared_index_is_the_topics(client: pulsar.Client, web: Admin, topic: str) -> None:
    subscribed(client, topic, "a", "b", "c")
    publish(client, topic, 110)
    sealed_total = ("geminga_delayed_buckets_sealed_total", "")
    found = eventually(lambda: (p := metrics(web, topic)).get(sealed_total, 0) >= 4 and p)
    sealed = found[sealed_total]
    assert found[f"{PREFIX}bucket_total", ""] >= sealed + 1
    assert found[f"{PREFIX}loaded", ""] <= 30, "the rest is on the bookie, and not due soon"
    assert found[f"{PREFIX}bucket_op_count", "state=succeed,type=create"] == sealed
    assert found[f"{PREFIX}bucket_op_latency_ms_count", "type=create"] == sealed
    assert found[f"{PREFIX}bucket_snapshot_size_bytes", ""] > 0
    assert found["geminga_delayed_buckets_merged_total", ""] == 0
    for name, labels in found:
        is_of_one = "subscription=" in labels and "lateness" not in name and "early" not in name
        assert not (
            is_of_one and name.startswith((f"{PREFIX}bucket", f"{PREFIX}loaded", "geminga_delayed_"))
        ), name

    def same() -> Any:
        stats, size = web.stats(topic), metrics(web, topic)[f"{PREFIX}size_bytes", ""]
        return stats if stats["delayedMessageIndexSizeInBytes"] == size > 0 else None

    stats = eventually(same, what="the size is the same in both once all is sealed")
    shown = [stats, *stats["subscriptions"].values()]
    assert not any("bucketDelayedIndexStats" in part for part in shown), "as the real broker's JSON"


@SHARED
def test_stats_internal_names_the_buckets_of_each_subscription_that_uses_them(
    client: pulsar.Client, web: Admin, topic: str
) -> None:
    subscribed(client, topic, "a", "b")
    publish(client, topic, 110)

    def all_named() -> Any:
        found = named_buckets(web, topic)  # one cursor's names are written after the other's
        return found if len(found["a"]) >= 4 and found["a"] == found["b"] else None

    named = eventually(all_named, what="the same four buckets named by both")
    pages = web.get(f"/geminga/delayed/{topic_path(topic)}/subscription/a/buckets").json()
    assert {b["ledgerId"] for b in pages if b["ledgerId"] is not None} == set(named["a"].values())
    client.subscribe(topic, "at-once", ConsumerType.Exclusive)
    assert web.post(f"/admin/v2/{topic_path(topic)}/subscription/b/skip_all").status == 204
    after = named_buckets(web, topic)
    assert after["at-once"] == after["b"] == {}
    assert after["a"].keys() >= named["a"].keys()
    assert not any(
        key.startswith("#pulsar") for key in web.stats(topic)["subscriptions"]["a"]["subscriptionProperties"]
    )


@SHARED
def test_what_only_the_last_laggard_needed_is_deleted(
    client: pulsar.Client, web: Admin, process: BrokerProcess, topic: str
) -> None:
    ahead, laggard = subscribed(client, topic, "ahead", "laggard")
    publish(client, topic, 110)
    named = eventually(lambda: len((found := named_buckets(web, topic))["laggard"]) >= 4 and found)
    assert web.post(f"/admin/v2/{topic_path(topic)}/subscription/ahead/skip_all").status == 204
    assert named_buckets(web, topic)["laggard"].keys() >= named["laggard"].keys()
    laggard.unsubscribe()
    deleted = (f"{PREFIX}bucket_op_count", "state=succeed,type=delete")
    found = eventually(lambda: (p := metrics(web, topic)).get(deleted, 0) >= len(named["laggard"]) and p)
    assert found[f"{PREFIX}bucket_total", ""] == 1
    assert found[f"{PREFIX}bucket_snapshot_size_bytes", ""] == 0
    ahead.close()
    assert not set(named["laggard"].values()) & ledgers_on_disk(process)
    assert named_buckets(web, topic) == {"ahead": {}}


@SHARED
def test_exclusive_and_failover_deliver_at_once_and_the_log_says_so_once(
    client: pulsar.Client, web: Admin, process: BrokerProcess, topic: str
) -> None:
    """The real broker says of 300 such messages: msgDelayed 0, msgBacklogNoDelayed 300."""
    subscribed(client, topic, "waits")
    publish(client, topic, 10)
    eventually(lambda: web.subscription(topic, "waits")["msgDelayed"] == 10)
    at_once = [
        client.subscribe(topic, "exclusive", initial_position=pulsar.InitialPosition.Earliest),
        client.subscribe(
            topic, "failover", ConsumerType.Failover, initial_position=pulsar.InitialPosition.Earliest
        ),
    ]
    publish(client, topic, 20)
    for consumer in at_once:
        for _ in range(30):
            consumer.receive(10_000)
        counts = web.subscription(topic, consumer.subscription_name())
        assert [counts[key] for key in ("msgDelayed", "msgBacklogNoDelayed", "msgBacklog")] == [0, 30, 30]
    counts = web.subscription(topic, "waits")
    assert [counts[key] for key in ("msgDelayed", "msgBacklogNoDelayed", "msgBacklog")] == [30, 0, 30]
    found = metrics(web, topic)
    assert found["pulsar_subscription_delayed", "subscription=exclusive"] == 0
    assert found["pulsar_subscription_back_log_no_delayed", "subscription=exclusive"] == 30
    said = [line for line in process.log_path.read_text().splitlines() if f"{topic} / " in line]
    said = [line for line in said if "messages with a delivery time are delivered at once" in line]
    assert [line.partition(f"{topic} / ")[2].partition(":")[0] for line in said] == ["exclusive", "failover"]
    assert all("INFO" in line for line in said)


@SHARED
def test_a_lost_bucket_is_counted_with_what_was_read_again_and_rebuilt(
    client: pulsar.Client, web: Admin, topic: str
) -> None:
    consumer = subscribed(client, topic, "s")[0]
    publish(client, topic, 110)
    path = f"/geminga/delayed/{topic_path(topic)}/subscription/s"

    def sealed() -> list[Any]:
        return [bucket for bucket in web.get(f"{path}/buckets").json() if bucket["ledgerId"] is not None]

    lost = eventually(lambda: len(found := sealed()) >= 4 and found)[1]
    quietly = {"ledgerId": lost["ledgerId"], "quietly": True}
    assert web.post(f"{path}/lose-bucket", quietly).status in (200, 204)
    assert web.put(f"/admin/v2/{topic_path(topic)}/unload").status == 204
    by_cause = "geminga_delayed_buckets_lost_total"
    rebuilt = ("geminga_delayed_buckets_rebuilt_total", "")
    found = eventually(lambda: (p := metrics(web, topic)).get(rebuilt, 0) and p, timeout_s=20)
    causes = {labels: value for (name, labels), value in found.items() if name == by_cause}
    assert causes == {"cause=start": 1, "cause=load": 0, "cause=verify": 0, "cause=told": 0}
    assert found["geminga_delayed_buckets_lost_at_start", ""] == 1
    assert found["geminga_delayed_messages_read_again_total", ""] == lost["messages"] > 0
    assert found[rebuilt] == 1
    assert found["geminga_delayed_buckets_sealed_total", ""] >= 1
    assert web.subscription(topic, "s")["msgDelayed"] == 110
    consumer.close()


def lateness(web: Admin, topic: str) -> tuple[list[float], float, float, float]:
    """The buckets of the histogram, its count and sum, and how many were early."""
    found, kinds = scrape(web, topic)
    assert kinds["geminga_delayed_lateness_ms"] == "histogram"
    assert kinds["geminga_delayed_early"] == "counter", "the parser takes the suffix off"
    name = "geminga_delayed_lateness_ms"
    buckets = [value for (key, _), value in found.items() if key == f"{name}_bucket"]
    early = found["geminga_delayed_early_total", "subscription=s"]
    count, total = (found[f"{name}_{kind}", "subscription=s"] for kind in ("count", "sum"))
    assert found[f"{name}_bucket", "subscription=s,le=+Inf"] == count == buckets[-1]
    assert buckets == sorted(buckets)
    return buckets, count, total, early


def deliver(client: pulsar.Client, topic: str, count: int, delay_ms: int = 1000) -> float:
    """Send messages that are due soon, and receive them; by how much they were late together, in
    ms, as the client saw it.
    """
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    producer = client.create_producer(topic)
    base_ms = now_ms() + delay_ms
    for number in range(count):
        producer.send_async(b"%d" % (base_ms + number), lambda *_: None, deliver_at=base_ms + number)
    producer.flush()
    late_ms = 0.0
    for _ in range(count):
        message = consumer.receive(20_000)
        late_ms += now_ms() - int(message.data())
        consumer.acknowledge(message)
    consumer.close()
    return late_ms


@SHARED
def test_lateness_is_a_histogram_of_what_was_given_out(client: pulsar.Client, web: Admin, topic: str) -> None:
    seen_ms = deliver(client, topic, 100)
    _, count, total_ms, early = lateness(web, topic)
    assert (count, early) == (100, 0)
    assert 0 <= total_ms <= seen_ms, "the client saw each of them after the broker sent it"


@OWN
def test_early_ones_are_counted_apart(client: pulsar.Client, web: Admin, topic: str) -> None:
    deliver(client, topic, 100, 2000)
    _, count, _, early = lateness(web, topic)
    assert count + early == 100
    assert early > 0


@OWN
def test_an_index_of_its_own_is_the_subscriptions_and_summed_up_for_the_topic(
    client: pulsar.Client, web: Admin, topic: str
) -> None:
    """As Pulsar's testBucketDelayedIndexMetrics, and as the real broker labels them."""
    subscribed(client, topic, "a", "b")
    publish(client, topic, 110)
    created = f"{PREFIX}bucket_op_count"
    done = (created, "state=succeed,type=create")
    found = eventually(lambda: (p := metrics(web, topic)).get(done, 0) >= 10 and p)
    for name in (f"{PREFIX}bucket_total", f"{PREFIX}loaded", f"{PREFIX}bucket_snapshot_size_bytes"):
        parts = [found[name, f"subscription={subscription}"] for subscription in "ab"]
        assert found[name, ""] == sum(parts)
        assert min(parts) > 0
    by_owner = [found[created, f"subscription={owner},state=all,type=create"] for owner in "ab"]
    assert found[created, "state=all,type=create"] == sum(by_owner)
    sealed = "geminga_delayed_buckets_sealed_total"
    assert [found[sealed, f"subscription={owner}"] for owner in "ab"] == by_owner
    assert (sealed, "") not in found, "its own families count everything once"
    sizes = [found["pulsar_subscription_delayed_message_index_size_bytes", f"subscription={s}"] for s in "ab"]
    assert found[f"{PREFIX}size_bytes", ""] == sum(sizes)
    named = named_buckets(web, topic)
    assert not set(named["a"].values()) & set(named["b"].values())
    assert [len(named[owner]) for owner in "ab"] == by_owner


@pytest.mark.parametrize("process", ["by-namespace"], indirect=True, scope="module")
def test_without_topics_a_page_has_the_sums_over_a_namespace(
    client: pulsar.Client, web: Admin, topic: str
) -> None:
    for each in (topic, f"{topic}-b"):
        subscribed(client, each, "s", "t")
        publish(client, each, 110)
    sealed = ("geminga_delayed_buckets_sealed_total", "")
    found = eventually(lambda: (p := metrics(web, None)).get(sealed, 0) >= 10 and p)
    assert found[f"{PREFIX}bucket_total", ""] == 12
    assert found["geminga_delayed_early_total", ""] == 0
    assert not any("lateness" in name for name, _ in found), "none has come yet"
    assert not any("subscription=" in labels for name, labels in found if "delayed" in name)


def test_messages_due_one_by_one_from_disk_wait_for_few_reads(tmp_path: Path, make_client: Make) -> None:
    """The entries of a message that had to be read are counted apart from those that a cache had by then."""
    settings = {
        "gemingaClock": "virtual",
        "isDelayedDeliveryDeliverAtTimeStrict": "true",
        "delayedDeliveryMinIndexCountPerBucket": "100",
        "dbStorage_readAheadCacheMaxSizeMb": "1",
    }
    topic = "persistent://public/default/far-apart"
    seconds = list(range(3600, 5600))
    random.Random(3).shuffle(seconds)
    with BrokerProcess(tmp_path / "data", settings=settings) as broker:
        client = make_client(broker.endpoints.service_url)
        client.subscribe(topic, "s", ConsumerType.Shared)
        producer = client.create_producer(topic, block_if_queue_full=True)
        first_ms = now_ms()
        for second in seconds:
            deliver_at = first_ms + 1000 * second
            producer.send_async(b"%d" % second + bytes(4000), lambda *_: None, deliver_at=deliver_at)
        producer.flush()
        client.close()
        broker.stop()
        broker.start()
        client = make_client(broker.endpoints.service_url)
        consumer = client.subscribe(topic, "s", ConsumerType.Shared)
        admin = Admin(broker.endpoints.web_url)
        admin.post("/geminga/clock", {"ms": 3_600_000})
        came = [receive(consumer)]

        def waited() -> int:
            page = admin.get("/metrics").text
            name = "geminga_bookie_read_entry_log_entries"
            return int(
                sum(
                    sample.value
                    for family in text_string_to_metric_families(page)
                    for sample in family.samples
                    if sample.name == name
                )
            )

        few = False
        for _ in range(12):
            before = waited()
            for _ in range(150):
                admin.post("/geminga/clock", {"ms": 1000})
                came.append(receive(consumer))
            # Again, as nothing is read along while a read takes some milliseconds.
            few = waited() - before < 75
            if few:
                break
        found = [int(message.data().rstrip(b"\0")) for message in came]
        assert found == list(range(found[0], found[0] + len(found)))
        assert few
