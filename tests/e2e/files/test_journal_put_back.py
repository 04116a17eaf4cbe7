"""A journal is away for some starts after a kill, whatever is run meanwhile, and comes back: all it has is
served.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pulsar
import pytest

from tests.e2e.broker_process import BrokerProcess

pytestmark = pytest.mark.skipif("GEMINGA_TEST_URL" in os.environ, reason="looks into Geminga's files")

SETTINGS = {
    "flushInterval": "600000",
    "journalMaxSizeMB": "1",
    "journalMaxBackups": "0",
    "managedLedgerMaxEntriesPerLedger": "40",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "defaultRetentionTimeInMinutes": "-1",
    "defaultRetentionSizeInMB": "-1",
}
TOPIC, LATER = "persistent://public/default/journals", "persistent://public/default/later"
MESSAGES = 1200
"""Of 3 KB each: four journals."""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("journals") / "data"
    broker = BrokerProcess(data, settings=SETTINGS)
    # A mark, without which each journal is read at each start.
    with broker:
        _publish(broker, TOPIC, range(50))
    broker.start()
    _publish(broker, TOPIC, range(50, MESSAGES))
    broker.kill()
    return data


@pytest.mark.parametrize(
    ("number", "meanwhile"),
    [
        (1, ["start", "bookie release", "start"]),
        (1, ["bookie rebuild-index"]),
        (1, ["start", "bookie rebuild-index", "start", "bookie release", "start"]),
        (-1, ["publish"]),
    ],
)
def test_a_journal_comes_back(tmp_path: Path, killed: Path, number: int, meanwhile: Sequence[str]) -> None:
    shutil.copytree(killed, tmp_path / "data")
    broker = BrokerProcess(tmp_path / "data", settings=SETTINGS)
    journal = sorted((broker.data_dir / "bookie" / "journal").glob("*.journal"))[number]
    journal.rename(tmp_path / "away")
    for step in meanwhile:
        if step.startswith("bookie"):
            command = [sys.executable, "-m", "geminga", *step.split(), "--data-dir", str(broker.data_dir)]
            subprocess.run(command, capture_output=True, check=False)
        else:
            with broker:
                if step == "publish":
                    _publish(broker, LATER, range(400))
    assert not journal.exists(), "its name was given again"
    (tmp_path / "away").rename(journal)
    with broker:
        assert _read(broker, TOPIC, MESSAGES) == list(range(MESSAGES))
        if "publish" in meanwhile:
            assert _read(broker, LATER, 400) == list(range(400))


def _client(broker: BrokerProcess) -> pulsar.Client:
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
    return pulsar.Client(broker.endpoints.service_url, logger=logger)


def _publish(broker: BrokerProcess, topic: str, numbers: Sequence[int]) -> None:
    client = _client(broker)
    producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
    for number in numbers:
        producer.send_async(b"%06d" % number + bytes(3000), lambda result, _: None)
    producer.flush()
    client.close()


def _read(broker: BrokerProcess, topic: str, count: int) -> list[int]:
    client = _client(broker)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = [int(reader.read_next(20_000).data()[:6]) for _ in range(count)]
    client.close()
    return found
