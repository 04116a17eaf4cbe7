"""The page of metrics after a workload, beside the one that a real Pulsar showed after the same workload."""

from __future__ import annotations

import os
import urllib.request
from pathlib import Path
from typing import NamedTuple

import pulsar
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics_families

from tests.e2e.broker_process import BrokerProcess
from tests.e2e.metrics import storage_workload
from tests.e2e.metrics.document import document_of
from tests.e2e.metrics.pages import Page, declared, median_of, near, page_of
from tests.e2e.metrics.recorder import recorded, scrape
from tests.e2e.metrics.workload import PREFIX, SETTINGS, STATS_S, Pages, Workload
from tests.e2e.waiting import eventually

pytestmark = pytest.mark.geminga_only

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "metrics.md"

OUT_OF_SCOPE = {
    "pulsar_proxy": "there is no proxy",
    "jetty": "",
    "pulsar_txn": "there are no transactions",
    "pulsar_lb_assign": "there is one broker",
    "pulsar_lb_bundles": "there is one broker",
    "pulsar_lb_resource": "there is one broker",
    "pulsar_lb_unload": "there is one broker",
    "pulsar_sunit": "there is one broker",
    "pulsar_function": "there are no functions",
    "pulsar_sink": "there are no connectors",
    "pulsar_source": "there are no connectors",
    "pulsar_ledgeroffloader": "nothing is offloaded",
    "pulsar_replication": "nothing is replicated",
    "replication_worker": "there is one bookie",
    "auditor": "there is one bookie",
}
NOT_SERVED = {
    **{f"bookkeeper_server_BookieReadThreadPool_queue_{n}": "reads have one queue" for n in range(1, 8)},
    "bookkeeper_server_BookieReadThreadPool_task_queued": "is not measured",
    "bookkeeper_server_ADD_ENTRY_BLOCKED": "no bound on requests holds entries back",
    "bookkeeper_server_READ_ENTRY_BLOCKED": "no bound on requests holds reads back",
    "jvm_pause_time_ms_sum": "is not measured",
    "bookie_ledger_dir__pulsar_data_bookkeeper_ledgers_0_usage": "the directory's name is in the metric's",
}
MOVED_MIN = 200
"""Names of samples."""
SHARE = 0.1
"""How far values may be from the real broker's."""
DIFFERENT = {
    "process": "another process",
    "jvm": "another machine",
    "jetty": "counts only scrapes",
    "caffeine": "other caches",
    "pulsar_version_info": "another version",
    "pulsar_lb": "another process",
    "pulsar_storage_backlog_age_seconds": "only with a quota of age",
    "pulsar_delayed_message_index": "one index for all subscriptions",
    "pulsar_subscription_delayed_message_index": "one index for all subscriptions",
    "pulsar_ml_cursor": "a state is written at most four times a second",
    "pulsar_ml_MarkDelete": "a state is written at most four times a second",
}
OF_AN_INTERVAL = ("pulsar_entry_size", "pulsar_ml_AddEntrySucceed", "pulsar_ml_ReadEntriesSucceeded")
"""Counts, which are as high as the interval is long."""
RATES = ("rate", "Rate", "throughput", "average", *OF_AN_INTERVAL)
AGED = "aged"
"""The real broker takes nothing from a topic whose backlog is old and in its newest ledger."""
INTERVALS = 5
OTHERWISE = {
    "pulsar_publish_rate_limit_times": "the real broker counted none of three",
    "pulsar_subscription_msg_rate_redeliver": "an interval of a second may have none",
    "pulsar_consumer_msg_rate_redeliver": "an interval of a second may have none",
    "pulsar_subscription_msg_ack_rate": "acknowledgements come in groups",
    "pulsar_consumer_msg_ack_rate": "acknowledgements come in groups",
    "pulsar_ml_AddEntryBytesRate": "large entries come in bursts",
    "pulsar_ml_AddEntryWithReplicasBytesRate": "large entries come in bursts",
    "pulsar_ml_ReadEntriesBytesRate": "reads come in bursts",
    "pulsar_ml_ReadEntriesRate": "reads come in bursts",
    "pulsar_ml_ReadEntriesOpsCacheMissesRate": "reads come in bursts",
    "pulsar_ml_ReadEntriesSucceeded": "reads come in bursts",
    "pulsar_ml_cache_hits_rate": "reads come in bursts",
    "pulsar_ml_cache_misses_rate": "reads come in bursts",
    "pulsar_ml_cache_hits_throughput": "reads come in bursts",
    "pulsar_ml_cache_misses_throughput": "reads come in bursts",
    "pulsar_storage_read_rate": "the real broker reads what comes again from the disk",
    "pulsar_storage_read_cache_misses_rate": "the real broker reads what comes again from the disk",
    "pulsar_broker_storage_read_rate": "reads come in bursts",
    "pulsar_broker_storage_read_cache_misses_rate": "reads come in bursts",
    "pulsar_entry_size_sum": "large entries come in bursts",
    "pulsar_throughput_in": "large entries come in bursts",
    "pulsar_broker_throughput_in": "large entries come in bursts",
    "pulsar_producer_msg_throughput_in": "large entries come in bursts",
    "pulsar_producer_msg_average_Size": "large entries come in bursts",
    "pulsar_average_msg_size": "large entries come in bursts",
}
"""Names that may differ by more, and why."""
AT_REST = {
    **dict.fromkeys(
        (
            "bookie_journal_JOURNAL_CB_QUEUE_SIZE",
            "bookie_journal_JOURNAL_FORCE_WRITE_QUEUE_SIZE",
            "bookie_journal_JOURNAL_QUEUE_SIZE",
            "bookkeeper_server_ADD_ENTRY_IN_PROGRESS",
            "bookkeeper_server_BookieReadThreadPool_queue_0",
            "bookkeeper_server_BookieWriteThreadPool_queue_0",
            "bookkeeper_server_READ_ENTRY_IN_PROGRESS",
            "bookkeeper_server_thread_executor_queue",
            "geminga_bookie_journal_queue_bytes",
        ),
        "what waits for the disk is gone within a millisecond",
    ),
    **dict.fromkeys(
        (
            "geminga_bookie_damaged_entries_found",
            "geminga_bookie_damaged_entries_healed",
        ),
        "tests/e2e/files/log_damage.py flips bytes",
    ),
    "geminga_bookie_confirmed_entries_missing": "tests/e2e/faults/test_e2e_health.py has some",
    **dict.fromkeys(
        ("geminga_bookie_kept_bytes", "geminga_bookie_kept_logs", "geminga_bookie_recovery_entries_found"),
        "tests/e2e/files/test_log_put_back.py takes a log away",
    ),
    "geminga_loop_pauses_total": "tests/e2e/messages/test_e2e_loop_pauses.py causes some",
    "geminga_topics_unread": "gone within a moment of a start; tests/broker/topic/test_unloaded.py sees it",
    "geminga_delayed_buckets_lost_at_start": "tests/e2e/delays/test_e2e_delayed_metrics.py loses one",
    "geminga_bookie_ledgers_aside": "tests/e2e/files has metadata older than its ledgers",
    **dict.fromkeys(
        (
            "geminga_bookie_recovery_damages",
            "geminga_bookie_recovery_entries_indexed",
            "geminga_bookie_recovery_entries_known",
            "geminga_bookie_recovery_entries_lost",
            "geminga_bookie_recovery_entries_missing",
            "geminga_bookie_recovery_entries_of_deleted_ledgers",
            "geminga_bookie_recovery_headers_restored",
            "geminga_bookie_recovery_index_rebuilt",
            "geminga_bookie_recovery_logs_cut",
            "geminga_bookie_recovery_logs_damaged",
            "geminga_bookie_recovery_logs_missing",
            "geminga_bookie_recovery_torn_bytes",
        ),
        "the journals heal all damage of the workload; tests/bookie/recovery has each that they cannot",
    ),
    "geminga_delayed_early_total": "tests/e2e/delays/test_e2e_delayed_metrics.py is early",
    "geminga_delayed_buckets_rebuilt_total": "tests/e2e/delays/test_e2e_delayed_metrics.py rebuilds",
    "geminga_log_dropped_lines": "every line is read",
    "geminga_loops": "the loops do not change",
    "geminga_memory_budget_bytes": "the budget does not change",
    "geminga_memory_configured_bytes": "the budget does not change",
    "geminga_metrics_pages_abandoned": "test_e2e_metrics.py gives scrapes up",
    "geminga_metrics_series_dropped": "tests/admin/metrics has a page with more",
    "geminga_publish_memory_waits": "tests/e2e/faults/test_e2e_publish_memory.py fills the memory",
    "process_max_fds": "the limit does not change",
    "pulsar_broker_lookup_failures_total": "the client asks for partitions first",
    "pulsar_broker_topic_load_pending_requests": "a load takes a millisecond",
    "pulsar_ml_AddEntryErrors": "no disk fails",
    "pulsar_ml_ReadEntriesErrors": "no disk fails",
    "pulsar_ml_cache_evictions": "the cache is not full",
    "pulsar_ml_cursor_persistLedgerErrors": "no disk fails",
    "pulsar_ml_cursor_persistZookeeperErrors": "no disk fails",
    "pulsar_ml_AddEntryLatencyBuckets_OVERFLOW": "no write takes so long",
    "pulsar_ml_LedgerAddEntryLatencyBuckets_OVERFLOW": "no write takes so long",
    **dict.fromkeys(
        (
            f"pulsar_storage_{kind}write_latency_{of}"
            for kind in ("", "ledger_")
            for of in ("le_0_5", "le_1", "le_5", "le_10", "le_20", "le_50", "le_100", "le_200", "le_1000")
        ),
        "one of two neighbouring classes moves with each stop of the process",
    ),
    "pulsar_subscription_in_replay": "is sent again at once",
    "pulsar_subscription_msg_rate_redeliver": "an interval of a second may have none",
    "pulsar_consumer_msg_rate_redeliver": "an interval of a second may have none",
    "pulsar_subscription_msg_rate_expired": "messages expired in an earlier interval",
    "pulsar_version_info": "the version does not change",
    "topic_load_failed_total": "no topic is damaged",
}
"""Names that may stay as they are through both workloads, and why."""


class Played(NamedTuple):
    pages: Pages
    open_metrics: str
    """The last of them in that format."""
    restarted: str
    """After a restart, and a look at what is only on the disk."""
    hard: list[str]
    """Of storage that is collected, compacted, damaged, slow and full."""


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    settings = {**SETTINGS, "statsUpdateFrequencyInSecs": "1"}
    with BrokerProcess(tmp_path_factory.mktemp("workload") / "data", settings=settings) as process:
        url, service_url = process.endpoints.web_url, process.endpoints.service_url
        in_open_metrics: list[str] = []

        def scrape_both() -> str:
            in_open_metrics.append(scrape_open_metrics(url))
            return scrape(url)

        pages = Workload(service_url, url, scrape_both, stats_s=1, intervals=INTERVALS).play()
        # A stop would leave the journal nothing to read again, and a message of a while ago may be flushed.
        publish_one(service_url)
        process.kill()
        process.start()
        read_again(service_url)

        def measured() -> str | None:
            found = scrape(url)
            return found if page_of(found).total("pulsar_storage_read_rate") else None

        restarted = eventually(measured)
    hard = storage_workload.play(tmp_path_factory.mktemp("storage"))
    return Played(pages, in_open_metrics[-1], restarted, hard)


def scrape_open_metrics(web_url: str) -> str:
    accept = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"}
    with urllib.request.urlopen(urllib.request.Request(f"{web_url}/metrics", headers=accept)) as response:
        kind = response.headers["Content-Type"]
        text: str = response.read().decode()
    assert kind.startswith("application/openmetrics-text; version=1.0.0")
    return text


def publish_one(service_url: str) -> None:
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
    client = pulsar.Client(service_url, logger=logger)
    client.create_producer(f"{PREFIX}/last").send(b"")
    client.close()


def read_again(service_url: str) -> None:
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
    client = pulsar.Client(service_url, logger=logger)
    reader = client.create_reader(f"{PREFIX}/plain", pulsar.MessageId.earliest)
    for _ in range(200):
        reader.read_next(10_000)
    client.close()


@pytest.fixture(scope="module")
def page(played: Played) -> Page:
    return page_of(played.pages.loaded)


@pytest.fixture(scope="module")
def real() -> Page:
    return page_of(recorded().loaded)


def test_names_that_dashboards_ask_for_are_served_or_out_of_scope(page: Page) -> None:
    asked = (Path(__file__).with_name("dashboard_names.txt")).read_text().split()
    missing = [name for name in asked if name not in page.samples]
    in_scope = [name for name in missing if not name.startswith(tuple(OUT_OF_SCOPE))]
    assert set(in_scope) <= NOT_SERVED.keys()
    assert len(asked) - len(missing) >= 128


def test_names_that_the_real_broker_shows_to_dashboards_are_served(page: Page, real: Page) -> None:
    asked = (Path(__file__).with_name("dashboard_names.txt")).read_text().split()
    assert [name for name in asked if name in real.samples and name not in page.samples] == []


def test_types_and_labels_are_those_of_the_real_broker(played: Played, page: Page, real: Page) -> None:
    ours, theirs = declared(played.pages.loaded), declared(recorded().loaded)
    other = {
        name: (ours[name], kind)
        for name, kind in theirs.items()
        if name in ours and ours[name] != kind and name.startswith("pulsar_")
    }
    assert other == {}
    for name in real.samples.keys() & page.samples.keys():
        if name.startswith("pulsar_") and "delayed_message_index" not in name:
            assert page.label_names(name) <= real.label_names(name), name
    assert all(page.helps.values()), "every family has a text"


def test_values_are_those_of_the_real_broker(played: Played, real: Page) -> None:
    """Of prepared topics all, of those that are published to meanwhile what does not grow with time. As the
    median of several intervals: in one of them a busy machine may publish less.
    """
    page = median_of([page_of(text) for text in played.pages.paced])
    same, other = [], {}
    for name in sorted(real.samples.keys() & page.samples.keys()):
        if name.startswith(tuple(DIFFERENT)) or "latency" in name or "_timestamp" in name:
            continue
        scale = STATS_S if name.startswith(OF_AN_INTERVAL) else 1
        ours = page.samples[name]
        compared = {
            of: (ours[of], value / scale)
            for of, value in real.samples[name].items()
            if of in ours and is_comparable(name, dict(of))
        }
        # A message more or less in an interval of a second.
        differs = {
            of: pair
            for of, pair in compared.items()
            if not near(*pair, SHARE) and abs(pair[0] - pair[1]) > 1.1
        }
        if differs:
            other[name] = differs
        elif any(value for _, value in compared.values()):
            same.append(name)
    assert other.keys() <= OTHERWISE.keys(), other
    assert len(same) >= 60


def is_comparable(name: str, labels: dict[str, str]) -> bool:
    topic = labels.get("topic", labels.get("ledger_name", "")).rpartition("/")[2]
    if topic.startswith("__") or topic == AGED:
        return False
    return any(part in name for part in RATES) or (topic != "" and not topic.startswith("paced"))


def test_each_name_that_is_no_shim_moves(played: Played) -> None:
    empty, *others = map(page_of, (played.pages.empty, *played.pages.paced, played.restarted, *played.hard))
    seen = {name for page in others for name in page.samples}
    shims = {name for name, text in others[0].helps.items() if text.startswith("Shim")}

    def moves(name: str) -> bool:
        before = empty.samples.get(name, {})
        return any(
            value == value and value != before.get(of, 0)
            for page in others
            for of, value in page.samples.get(name, {}).items()
        )

    names = {name for name in seen if not name.startswith(tuple(shims))}
    moved = set(filter(moves, names))
    assert names - moved - AT_REST.keys() == set()
    assert len(moved) >= MOVED_MIN


def test_open_metrics_has_the_same_samples(played: Played, page: Page) -> None:
    text = played.open_metrics
    assert text.endswith("# EOF\n")
    names = {sample.name for family in open_metrics_families(text) for sample in family.samples}
    assert names == set(page.samples)


def test_the_documentation_lists_every_name(played: Played) -> None:
    """`GEMINGA_WRITE=1` writes it."""
    document = document_of(played.pages.loaded)
    if os.environ.get("GEMINGA_WRITE"):
        DOCUMENT.write_text(document)
    assert DOCUMENT.read_text() == document
