"""An entry log is away for some starts, whatever is run meanwhile, and comes back: all it has is served."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pulsar
import pytest
from pulsar import InitialPosition

from tests.e2e.admin_http import Admin, topic_path
from tests.e2e.broker_process import BrokerProcess
from tests.e2e.metrics.pages import page_of
from tests.e2e.metrics.recorder import scrape
from tests.e2e.waiting import eventually

pytestmark = pytest.mark.skipif("GEMINGA_TEST_URL" in os.environ, reason="looks into Geminga's files")

SETTINGS = {
    "managedLedgerMaxEntriesPerLedger": "40",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "journalMaxSizeMB": "1",
    "journalMaxBackups": "0",
    "logSizeLimit": "1048576",
    "gcWaitTime": "100",
    "brokerDeleteInactiveTopicsEnabled": "false",
}
TOPIC = "persistent://public/default/logs"
BODIES = [b"%d " % number + bytes(10_000) for number in range(300)]


@pytest.mark.parametrize("meanwhile", [[], ["unrecorded restore"], ["rebuild-index", "unrecorded restore"]])
def test_a_log_comes_back(tmp_path: Path, meanwhile: list[str]) -> None:
    broker = BrokerProcess(tmp_path / "data", settings=SETTINGS)
    with broker:
        client = pulsar.Client(broker.endpoints.service_url, logger=_quiet(tmp_path))
        client.subscribe(TOPIC, "app", initial_position=InitialPosition.Earliest).close()
        producer = client.create_producer(TOPIC, batching_enabled=False, block_if_queue_full=True)
        for body in BODIES[:-1]:
            producer.send_async(body, None)
        producer.send(BODIES[-1])
        client.close()
    log = sorted((broker.data_dir / "bookie" / "entry-logs").glob("*.log"))[1]
    log.rename(tmp_path / "away")
    with broker:
        health = _health(broker)
        assert any("entry logs that are not there: 1" in text for text in health["losses"])
        assert any("entries-missing" in text for text in health["losses"])
        assert any("geminga bookie release" in text for text in health["losses"])
    for command in meanwhile:
        subprocess.run(
            [sys.executable, "-m", "geminga", "bookie", *command.split(), "--data-dir", broker.data_dir],
            capture_output=True,
            check=False,
        )
        with broker:
            pass
    (tmp_path / "away").rename(log)
    with broker:
        asides = [text for text in _health(broker)["losses"] if "set aside" in text]
    if asides:
        # A ledger that was wholly in the log was taken out of its topic; the same command brings it back.
        arguments = ["unrecorded", "restore", "--data-dir", broker.data_dir]
        subprocess.run([sys.executable, "-m", "geminga", "bookie", *arguments], check=True)
    with broker:
        assert not any("entries-missing" in text for text in _health(broker)["losses"])
        client = pulsar.Client(broker.endpoints.service_url, logger=_quiet(tmp_path))
        reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
        assert [reader.read_next(20_000).data() for _ in BODIES] == BODIES
        client.close()
        found = gauges(broker)
        assert found["geminga_bookie_keeps_logs"] == 1
        # Without a start that took the log for lost for good, the index still has its rows.
        assert bool(found["geminga_bookie_recovery_entries_found"]) == bool(meanwhile) or asides
        # Nothing is deleted until somebody says so, not even what a user deletes.
        assert (
            Admin(broker.endpoints.web_url).delete(f"/admin/v2/{topic_path(TOPIC)}?force=true").status == 204
        )
        # One pass may find a part of them.
        eventually(lambda: gauges(broker)["geminga_bookie_kept_bytes"] > 2_500_000)
        assert gauges(broker)["geminga_bookie_kept_logs"] >= 3
    verify = [sys.executable, "-m", "geminga", "bookie", "verify", "--data-dir", broker.data_dir]
    assert (
        f"'geminga bookie release --data-dir {broker.data_dir}' ends that"
        in subprocess.run(verify, capture_output=True, text=True).stdout
    )
    release = [sys.executable, "-m", "geminga", "bookie", "release", "--data-dir", broker.data_dir]
    subprocess.run(release, check=True, capture_output=True)
    with broker:
        eventually(lambda: gauges(broker)["geminga_bookie_entry_logs_deleted"] >= 3)
        assert gauges(broker)["geminga_bookie_keeps_logs"] == 0


def gauges(broker: BrokerProcess) -> dict[str, float]:
    """Of the bookie, which have no labels."""
    samples = page_of(scrape(broker.endpoints.web_url)).samples
    return {name: value for name, of in samples.items() if "_bookie_" in name for value in of.values()}


def _health(broker: BrokerProcess) -> dict[str, list[str]]:
    found: dict[str, list[str]] = Admin(broker.endpoints.web_url).well("/geminga/health").json()
    return found


def _quiet(tmp_path: Path) -> pulsar.FileLogger:
    return pulsar.FileLogger(pulsar.LoggerLevel.Error, str(tmp_path / "client.log"))
