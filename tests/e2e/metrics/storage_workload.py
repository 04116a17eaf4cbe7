"""A hard life for a broker's storage: what moves the metrics that a plain workload leaves at rest.

`play` returns pages of `/metrics`: of a broker that collects and compacts entry logs and loses buckets; of
some that find entry logs cut or gone after a kill; of one that has no room on its disk.
"""

from __future__ import annotations

import itertools
import shutil
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pulsar

from tests.e2e.admin_http import Admin, topic_path
from tests.e2e.broker_process import BrokerProcess
from tests.e2e.metrics.pages import page_of
from tests.e2e.metrics.recorder import scrape
from tests.e2e.waiting import eventually

SETTINGS = {
    "logSizeLimit": str(1 << 20),
    "flushInterval": "100",
    "gcWaitTime": "100",
    "minorCompactionThreshold": "0.8",
    "minorCompactionInterval": "1",
    "majorCompactionThreshold": "0",
    "managedLedgerMaxEntriesPerLedger": "20",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "delayedDeliveryTrackerFactoryClassName": (
        "org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory"
    ),
    "delayedDeliveryMinIndexCountPerBucket": "20",
    "delayedDeliveryMaxNumBuckets": "4",
    "isDelayedDeliveryDeliverAtTimeStrict": "true",
    "statsUpdateFrequencyInSecs": "1",
    "clusterName": "standalone",
}
KEPT, GONE, LATER = (f"persistent://public/default/{name}" for name in ("kept", "gone", "later"))
PAYLOAD = b"x" * 20_000


def _client(broker: BrokerProcess) -> pulsar.Client:
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
    return pulsar.Client(broker.endpoints.service_url, logger=logger, stats_interval_in_seconds=0)


def _publish(client: pulsar.Client, topics: tuple[str, ...], count: int) -> None:
    """In turn, so that each entry log has entries of all of them."""
    producers = [client.create_producer(topic, batching_enabled=False) for topic in topics]
    for _ in range(count):
        for producer in producers:
            producer.send_async(PAYLOAD, lambda *_: None)
        for producer in producers:
            producer.flush()
    for producer in producers:
        producer.close()


def _until(broker: BrokerProcess, *names: str, seconds_max: float = 30.0) -> str:
    """A page on which these are above zero."""

    def moved() -> str:
        text = scrape(broker.endpoints.web_url)
        page = page_of(text)
        still = [name for name in names if not page.total(name)]
        assert not still, still
        return text

    return eventually(moved, seconds_max)


def _delete(broker: BrokerProcess, topic: str) -> None:
    path = f"/admin/v2/{topic_path(topic)}?force=true"
    assert Admin(broker.endpoints.web_url).delete(path).status == 204


def _deleted_alone(broker: BrokerProcess) -> Iterator[str]:
    """Entry logs of which nothing is left, unless a compaction comes first."""
    client = _client(broker)

    def publish_and_delete() -> str:
        _publish(client, (GONE,), 120)
        _delete(broker, GONE)
        return _until(broker, "bookie_RECLAIMED_DELETION_SPACE_BYTES", seconds_max=1.0)

    yield eventually(publish_and_delete, 30.0)
    client.close()


def _flushed_bytes(broker: BrokerProcess) -> float:
    return page_of(scrape(broker.endpoints.web_url)).total("geminga_bookie_flushed_bytes")


def _compacted(broker: BrokerProcess, kind: str) -> Iterator[str]:
    """Entry logs of which half is deleted."""
    client = _client(broker)
    client.subscribe(KEPT, "s").close()
    before = _flushed_bytes(broker)
    _publish(client, (KEPT, GONE), 80)
    client.close()
    # What is deleted before a flush is in no entry log, and leaves nothing to compact.
    eventually(lambda: _flushed_bytes(broker) >= before + 2 * 80 * len(PAYLOAD), 30.0)
    _delete(broker, GONE)
    yield _until(
        broker,
        "bookie_DELETED_LEDGER_TOTAL",
        f"bookie_{kind}_COMPACTION_TOTAL",
        "bookie_RECLAIMED_COMPACTION_SPACE_BYTES",
        "geminga_bookie_entry_logs_compacted",
        "geminga_bookie_entry_logs_deleted",
    )


def _delayed(broker: BrokerProcess) -> Iterator[str]:
    """Buckets are sealed, merged, lost and built again; what they hold is early by nothing."""
    client = _client(broker)
    consumer = client.subscribe(LATER, "s", pulsar.ConsumerType.Shared)
    producer = client.create_producer(LATER, batching_enabled=False)
    for number in range(200):
        producer.send_async(
            b"", lambda *_: None, deliver_after=timedelta(hours=1 + number), partition_key=str(number)
        )
    producer.flush()
    yield _until(broker, "geminga_delayed_buckets_sealed_total", "geminga_delayed_buckets_merged_total")
    path = f"{broker.endpoints.web_url}/geminga/delayed/{topic_path(LATER)}/subscription/s/lose-bucket"
    request = urllib.request.Request(path, b"{}", {"Content-Type": "application/json"})
    urllib.request.urlopen(request).close()
    yield _until(
        broker,
        "geminga_delayed_buckets_lost_total",
        "geminga_delayed_messages_read_again_total",
        "pulsar_delayed_message_index_bucket_snapshot_size_bytes",
    )

    def late() -> str:
        # Due while the process is stopped; else it may come within the millisecond.
        producer.send(b"", deliver_after=timedelta(milliseconds=300))
        broker.send_signal(signal.SIGSTOP)
        time.sleep(0.4)  # noqa: TID251 - lateness is a time
        broker.send_signal(signal.SIGCONT)
        return _until(broker, "geminga_delayed_lateness_ms_sum", seconds_max=1.0)

    yield eventually(late, 30.0)
    # Due after its consumer has left.
    producer.send(b"", deliver_after=timedelta(seconds=1))
    consumer.close()
    yield _until(broker, "geminga_subscription_overdue")
    client.close()


def _kept_for_compaction(broker: BrokerProcess) -> Iterator[str]:
    """A topic that keeps all messages for a while."""
    admin, path, client = Admin(broker.endpoints.web_url), f"/admin/v2/{topic_path(KEPT)}", _client(broker)
    assert admin.put(f"{path}/compaction").status == 204
    yield scrape(broker.endpoints.web_url)
    _publish(client, (KEPT,), 1)
    yield scrape(broker.endpoints.web_url)
    assert admin.delete(f"{path}/subscription/__compaction").status == 204
    client.close()


def _slow(broker: BrokerProcess) -> Iterator[str]:
    """The journal's syncs take as long as each class of latencies is."""
    client = _client(broker)
    producer = client.create_producer(LATER, batching_enabled=False)
    admin = Admin(broker.endpoints.web_url)
    for sync_ms, *classes in (
        (8, "le_10", "le_20"),
        (40, "le_50", "le_100"),
        (150, "le_200"),
        (700, "le_1000"),
        (1300, "overflow"),
    ):
        names = [
            f"pulsar_storage_{kind}_latency_{of}" for kind in ("write", "ledger_write") for of in classes
        ]

        # A latency is this time and what a busy machine adds, which may be a class more: shorter ones are
        # tried as well.
        shares = itertools.cycle((1.0, 0.75, 0.5))

        def slowed() -> str | None:
            latency_ms = int(sync_ms * next(shares))  # noqa: B023
            rule = {"place": "journal", "kind": "slow", "operation": "sync", "latencyMs": latency_ms}
            assert admin.request("POST", "/geminga/faults", rule).status == 200
            for _ in range(5):
                producer.send(b"x" * 200)
            assert admin.request("DELETE", "/geminga/faults").status == 200
            # The classes are those of the last second.
            for _ in range(6):
                text = scrape(broker.endpoints.web_url)
                page = page_of(text)
                if any(page.total(name) for name in names):  # noqa: B023
                    return text
                time.sleep(0.25)  # noqa: TID251 - of the second that is looked at
            return None

        yield eventually(slowed, 60.0, what=f"{names} to move")
    client.close()


def _logs(directory: Path) -> list[Path]:
    return sorted((directory / "bookie").rglob("*.log"), key=lambda path: int(path.stem, 16))


def _cut(directory: Path) -> None:
    log = _logs(directory)[0]
    log.write_bytes(log.read_bytes()[: log.stat().st_size // 2])


def _removed(directory: Path) -> None:
    _logs(directory)[0].unlink()


def _damaged(killed: Path, damage: Callable[[Path], None]) -> str:
    """What a start tells of files that were damaged after a kill."""
    copy = killed.with_name(damage.__name__)
    shutil.copytree(killed, copy)
    damage(copy)
    with BrokerProcess(copy, settings=SETTINGS) as broker:
        return scrape(broker.endpoints.web_url)


def play(directory: Path) -> list[str]:
    """All pages, the first of an empty broker. Each broker has a directory of its own below this one."""
    pages: list[str] = []
    first = directory / "first"
    broker = BrokerProcess(first, settings=SETTINGS, arguments=["--chaos"])
    broker.start()
    try:
        pages.append(scrape(broker.endpoints.web_url))
        pages += _deleted_alone(broker)
        pages += _compacted(broker, "MINOR")
        pages += _delayed(broker)
        pages += _slow(broker)
        pages += _kept_for_compaction(broker)
        # Not flushed yet at the kill, so that the next start replays it.
        client = _client(broker)
        _publish(client, (KEPT,), 5)
        client.close()
    finally:
        broker.kill()
    no_room = SETTINGS | {"diskFreeBytesMin": str(1 << 60), "diskFreeBytesEnough": str(1 << 60)}
    shutil.copytree(first, directory / "full")
    with BrokerProcess(directory / "full", settings=no_room) as full:
        pages.append(scrape(full.endpoints.web_url))
    only_major = SETTINGS | {
        "minorCompactionThreshold": "0",
        "majorCompactionThreshold": "0.8",
        "majorCompactionInterval": "1",
    }
    with BrokerProcess(directory / "major", settings=only_major) as other:
        pages += _compacted(other, "MAJOR")
    for damage in (_cut, _removed):
        pages.append(_damaged(first, damage))
    return pages
