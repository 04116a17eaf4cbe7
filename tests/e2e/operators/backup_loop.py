"""Copies of a broker under load, each served by a broker of its own: all that had a receipt is in it.

    python -m tests.e2e.operators.backup_loop --copies 50

Prints a line for each copy, then the sums; exit code 1 if a receipted message was missing in any.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pulsar

from tests.e2e.broker_process import BrokerProcess, StandaloneProcess

TOPIC = "persistent://public/default/copied"
TOPICS = 40
BUSY = {
    "flushInterval": "150",
    "journalMaxSizeMB": "1",
    "logSizeLimit": "1048576",
    "gcWaitTime": "1000",
    "minorCompactionInterval": "1",
    "majorCompactionInterval": "2",
    "managedLedgerMaxEntriesPerLedger": "20",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "defaultRetentionTimeInMinutes": "-1",
    "defaultRetentionSizeInMB": "-1",
}
"""Files come and go all the time."""


def backup(broker: BrokerProcess, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "geminga", "backup", str(directory), "--url", broker.endpoints.web_url],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def quiet_client(service_url: str) -> pulsar.Client:
    return pulsar.Client(service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))


class Load(threading.Thread):
    """Publishes until it is told to end; `receipted` has what got a receipt."""

    def __init__(self, service_url: str) -> None:
        super().__init__(daemon=True)
        self.receipted: list[bytes] = []
        self.enough = threading.Event()
        self.ended = threading.Event()
        self._url = service_url

    def run(self) -> None:
        client = quiet_client(self._url)
        for topic in range(10**6):  # new topics all the time, so that ledgers are made while copies are
            producer = client.create_producer(f"{TOPIC}-{topic % TOPICS}")
            for number in range(5):
                body = (b"%d-%d" % (topic, number)).ljust(2000)
                producer.send(body)
                self.receipted.append(body)
                if len(self.receipted) >= 100:
                    self.enough.set()
            producer.close()
            if self.ended.is_set():
                break
        client.close()


def read_all(service_url: str) -> list[bytes]:
    client = quiet_client(service_url)
    found = []
    for topic in range(TOPICS):
        reader = client.create_reader(f"{TOPIC}-{topic}", pulsar.MessageId.earliest)
        while reader.has_message_available():
            found.append(reader.read_next(10_000).data())
        reader.close()
    client.close()
    return found


def serve(copy: Path, command: list[str], log: Path) -> list[bytes]:
    """Start the broker that `geminga backup` names; all that it has."""
    assert command[:4] == ["geminga", "standalone", "--data-dir", str(copy)]
    with StandaloneProcess(*command[2:], "--port", "0", "--web-port", "0", log_path=log) as served:
        return read_all(served.endpoints.service_url)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--copies", type=int, default=50)
    copies = parser.parse_args().copies
    missing = receipts = 0
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        with BrokerProcess(root / "data", settings=BUSY) as broker:
            load = Load(broker.endpoints.service_url)
            load.start()
            assert load.enough.wait(60)
            for number in range(copies):
                before = load.receipted[:]
                made = backup(broker, root / "copy")
                assert made.returncode == 0, made.stderr
                found = serve(root / "copy", made.stdout.partition("with: ")[2].split(), root / "copy.log")
                lost = set(before) - set(found)
                missing += len(lost)
                receipts += len(before)
                print(
                    f"{number + 1:4} {made.stdout.splitlines()[0]}: {len(before)} receipts, {len(lost)} lost"
                )
                shutil.rmtree(root / "copy")
            load.ended.set()
            load.join(60)
    print(f"{copies} copies, {receipts} receipts, {missing} lost")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
