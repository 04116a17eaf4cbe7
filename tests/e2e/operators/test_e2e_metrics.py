"""`/metrics` of a running broker: what is on the page, who shares one, and which pages are abandoned."""

from __future__ import annotations

import gzip
import http.client
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pulsar
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.admin_http import Admin, topic_path
from tests.e2e.broker_process import ROOT, BrokerProcess
from tests.e2e.waiting import eventually

pytestmark = pytest.mark.geminga_only

PREFIX = "pulsar_delayed_message_index_"
TOPICS = 200
FACTORY = "org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory"


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {
        "delayedDeliveryTrackerFactoryClassName": FACTORY,
        "delayedDeliveryMinIndexCountPerBucket": "20",
        "managedLedgerMaxEntriesPerLedger": "20",
        "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    }
    with BrokerProcess(tmp_path_factory.mktemp("metrics") / "data", settings=settings) as process:
        yield process


@pytest.fixture(scope="module")
def web(process: BrokerProcess) -> Admin:
    return Admin(process.endpoints.web_url)


def scrape(process: BrokerProcess, **headers: str) -> tuple[bytes, dict[str, str]]:
    address = urlsplit(process.endpoints.web_url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=30)
    connection.request("GET", "/metrics", headers=headers)
    response = connection.getresponse()
    assert response.status == 200
    body = response.read()
    connection.close()
    return body, {key.lower(): value for key, value in response.getheaders()}


def samples(page: bytes) -> dict[tuple[str, str], float]:
    """By name and topic, a few names only; of those with more labels the last one."""
    wanted = (b"geminga_metrics_", b"pulsar_msg_backlog{", PREFIX.encode())
    lines = b"".join(line for line in page.splitlines(keepends=True) if line.startswith(wanted))
    return {
        (sample.name, sample.labels.get("topic", "")): sample.value
        for family in text_string_to_metric_families(lines.decode())
        for sample in family.samples
    }


def test_buckets_of_the_shared_index_are_on_the_page(
    process: BrokerProcess, web: Admin, tmp_path: Path
) -> None:
    """Nothing but the tracker is set: subscriptions share one index, as they do by default."""
    topic = "persistent://public/default/later"
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(tmp_path / "client.log"))
    client = pulsar.Client(process.endpoints.service_url, logger=logger)
    client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic)
    for number in range(100):
        producer.send_async(b"%d" % number, lambda *_: None, deliver_after=timedelta(days=1 + number))
    producer.flush()
    path = f"/geminga/delayed/{topic_path(topic)}/subscription/s"
    eventually(lambda: web.get(path).json()["buckets"] >= 3)
    found = samples(scrape(process)[0])
    summary = web.get(path).json()
    assert summary["isShared"]
    assert found[f"{PREFIX}bucket_total", topic] >= summary["buckets"] >= 3
    assert found[f"{PREFIX}bucket_snapshot_size_bytes", topic] > 0
    assert (f"{PREFIX}loaded", topic) in found
    assert found[f"{PREFIX}bucket_op_count", topic] >= 3
    # All of them with their segments, though the answer is drawn piece by piece.
    shown = [bucket for bucket in web.get(f"{path}/buckets").json() if bucket["ledgerId"] is not None]
    assert all(sum(s["messages"] for s in bucket["segments"]) >= bucket["messages"] > 0 for bucket in shown)
    command = [sys.executable, "-m", "geminga", "delayed", "histogram", topic, "-s", "s"]
    drawn = subprocess.run(
        [*command, "--url", process.endpoints.web_url], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert drawn.stdout.startswith("each line is 5d 16h 32m (1m would be too many lines)\n") or (
        "would be too many lines" not in drawn.stdout
    )
    asked = web.get(f"{path}/histogram?widthMs=1").json()
    assert len(asked["classes"]) <= 1000
    assert {row["toMs"] - row["fromMs"] for row in asked["classes"]} == {asked["widthMs"]}
    client.close()


@pytest.fixture(scope="module")
def many(web: Admin) -> list[str]:
    """Topics with a subscription each."""
    topics = [f"persistent://public/default/t{number}" for number in range(TOPICS)]
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda t: web.put(f"/admin/v2/{topic_path(t)}/subscription/s"), topics)
        assert {answer.status for answer in answers} == {204}
    return topics


def test_ten_scrapes_at_once_are_served_from_fewer_pages(process: BrokerProcess, many: list[str]) -> None:
    before = samples(scrape(process)[0])["geminga_metrics_pages", ""]
    with ThreadPoolExecutor(10) as pool:
        pages = list(pool.map(lambda _: scrape(process)[0], range(10)))
    for page in pages:
        assert page.count(b"\npulsar_msg_backlog{") >= len(many), "a whole page"
        assert page.count(b"\npulsar_subscription_delayed_message_index_size_bytes{") >= len(many)
    begun = samples(scrape(process)[0])["geminga_metrics_pages", ""] - before - 1
    assert 1 <= begun < 10


def test_a_page_is_packed_for_a_scraper_that_can_unpack_it(process: BrokerProcess, many: list[str]) -> None:
    packed, headers = scrape(process, **{"Accept-Encoding": "gzip"})
    assert headers["content-encoding"] == "gzip"
    page = gzip.decompress(packed)
    assert len(packed) * 8 < len(page)
    found = samples(page)
    assert all(("pulsar_msg_backlog", topic) in found for topic in many)


def test_scrapes_that_are_given_up_are_drawn_no_further(
    process: BrokerProcess, web: Admin, many: list[str]
) -> None:
    address = urlsplit(process.endpoints.web_url)
    before = samples(scrape(process)[0])["geminga_metrics_pages_abandoned", ""]

    def give_up() -> dict[tuple[str, str], float] | None:
        with socket.create_connection((address.hostname or "", address.port or 0)) as given_up:
            given_up.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        for _ in range(3):  # the next scrape would share the page if it were not abandoned yet
            web.well()
        found = samples(scrape(process)[0])
        return found if found["geminga_metrics_pages_abandoned", ""] > before else None

    found = eventually(give_up)
    assert ("pulsar_msg_backlog", many[-1]) in found


def test_lists_and_statistics_over_many_are_whole(
    process: BrokerProcess, web: Admin, many: list[str]
) -> None:
    names = web.get("/admin/v2/persistent/public/default").json()
    assert [name for name in names if "/t" in name] == sorted(many)
    assert web.get("/admin/v2/namespaces/public/default/topics").json() == names
    whole = "persistent://public/default/parts"
    web.create_partitions(whole, 60)
    web.put(f"/admin/v2/{topic_path(whole)}/subscription/s")
    shown = web.get(f"/admin/v2/{topic_path(whole)}/partitioned-stats")
    assert list(shown.json()["partitions"]) == [f"{whole}-partition-{n}" for n in range(60)]
    assert shown.json()["subscriptions"]["s"]["msgBacklog"] == 0
    assert shown.json()["metadata"]["partitions"] == 60
    total = web.get(f"/admin/v2/{topic_path(whole)}/partitioned-stats?perPartition=false").json()
    assert total["partitions"] == {}
    inside = web.get(f"/admin/v2/{topic_path(whole)}/partitioned-internalStats").json()
    assert list(inside["partitions"]) == list(shown.json()["partitions"])
    assert inside["metadata"]["partitions"] == 60
