"""What a load balancer and an operator hear from a broker that is well, full, or without its files; and that
an operator's changes outlive the process that answered.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pulsar
import pytest

from tests.e2e.admin_http import HEALTH, Admin
from tests.e2e.broker_process import BrokerProcess
from tests.e2e.metrics.pages import page_of
from tests.e2e.metrics.recorder import scrape

OWN = "/geminga/health"


def test_a_broker_that_is_well(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        admin = Admin(broker.endpoints.web_url)
        assert admin.well().text == "ok"
        report = admin.well(OWN).json()
        assert (report["status"], report["reasons"]) == ("ok", [])
        assert report["round_trip_ms"] > 0
        assert admin.get("/admin/v2/persistent/public/default").json() == []
        assert admin.get("/admin/v2/namespaces/public").json() == ["public/default"]


def test_losses_are_told_of_a_broker_that_serves_the_rest(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", settings={"journalMaxBackups": "0", "journalMaxSizeMB": "1"})
    broker.start()
    client = pulsar.Client(
        broker.endpoints.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    client.subscribe("t", "s")
    producer = client.create_producer("t", batching_enabled=False)
    for _ in range(5):
        producer.send(bytes(1_000_000))
    client.close()
    assert broker.stop() == 0
    for path in (tmp_path / "data" / "bookie" / "entry-logs").iterdir():
        path.unlink()
    for path in sorted((tmp_path / "data" / "bookie" / "journal").iterdir())[:-1]:
        path.unlink()
    # After each start, not only after the one that found it.
    for _ in range(2):
        with broker:
            logs, confirmed, kept = Admin(broker.endpoints.web_url).well(OWN).json()["losses"]
            assert "entry logs that are not there: " in logs
            assert "geminga bookie verify" in logs
            assert confirmed.startswith("entries that topics have confirmed and no file has: 4; ")
            assert "geminga bookie release" in kept
            events = Admin(broker.endpoints.web_url).get("/geminga/events?kind=entries-missing").json()
            assert [event["counts"] for event in events][-1] == {"entries": 4}
            page = page_of(scrape(broker.endpoints.web_url)).samples
            assert list(page["geminga_bookie_confirmed_entries_missing"].values()) == [4]
    release = [sys.executable, "-m", "geminga", "bookie", "release", "--data-dir", str(tmp_path / "data")]
    subprocess.run(release, capture_output=True, check=True)
    with broker:
        losses = Admin(broker.endpoints.web_url).well(OWN).json()["losses"]
        assert [text.partition(":")[0] for text in losses] == [
            "entry logs that are not there",
            "entries that topics have confirmed and no file has",
        ]


def test_a_full_disk_is_unhealthy(tmp_path: Path) -> None:
    settings = {"diskFreeBytesMin": str(2**60)}
    with BrokerProcess(tmp_path / "data", settings=settings) as broker:
        admin = Admin(broker.endpoints.web_url)
        answer = admin.get(HEALTH)
        assert answer.status == 503
        assert "free some space on that disk" in answer.json()["reason"]
        report = admin.get(OWN)
        assert (report.status, report.json()["status"]) == (503, "unhealthy")
        [reason] = report.json()["reasons"]
        assert f"({tmp_path / 'data' / 'bookie'})" in reason, (
            "the alert GemingaReadOnly says that it is named"
        )
        assert admin.get("/admin/v2/brokers/ready").text == "ok"


def test_removed_files_are_unhealthy(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data")
    broker.start()
    admin = Admin(broker.endpoints.web_url)
    shutil.rmtree(tmp_path / "data" / "index")
    answer = admin.get(HEALTH)
    assert answer.status == 503
    assert f"{tmp_path}/data/index was removed" in answer.json()["reason"]
    assert broker.wait() == 1


@pytest.mark.parametrize(
    ("request_path", "left"), [("skip_all", 0), ("skip/4", 6), ("expireMessages/-1", 0), ("position", 4)]
)
def test_what_was_skipped_stays_skipped_after_a_kill(tmp_path: Path, request_path: str, left: int) -> None:
    broker = BrokerProcess(tmp_path / "data")
    broker.start()
    client = pulsar.Client(
        broker.endpoints.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    topic = "/admin/v2/persistent/public/default/t"
    admin = Admin(broker.endpoints.web_url)
    client.subscribe("t", "s").close()
    producer = client.create_producer("t", batching_enabled=False)
    ids = [producer.send(b"%d" % number) for number in range(10)]
    client.close()
    path = f"{topic}/subscription/s"
    if request_path == "position":
        body = {"ledgerId": ids[5].ledger_id(), "entryId": ids[5].entry_id()}
        answer = admin.post(f"{path}/expireMessages", body)
    else:
        answer = admin.post(f"{path}/{request_path}")
    assert answer.status == 204, answer
    broker.kill()
    with broker:
        stats = Admin(broker.endpoints.web_url).get(f"{topic}/stats").json()
        assert stats["subscriptions"]["s"]["msgBacklog"] == left
