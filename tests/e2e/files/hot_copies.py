"""Copies of a data directory that a broker is writing to, and metadata logs that are cut: what do they serve?

    python -m tests.e2e.files.hot_copies --copies 50
    python -m tests.e2e.files.hot_copies --wal-cuts 20

A broker with small ledgers, logs and caches is loaded by official clients. At random moments its folders are
copied with `cp -a`, in random order and with random pauses. With `--wal-cuts` the broker is killed instead,
and the metadata's write-ahead log cut at so many places. Each copy is started; where the broker refuses, or
warns of ledgers set aside, the command that it prints is run, and it is started again. Then all topics are
read. Judged is:

- an entry whose bytes are in an entry log or a journal of the copy is read, with the same bytes;
- an entry that was receipted before the copy began, and is in none of its files, is in a range that the
  command or the broker's log names.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pulsar
from pulsar import InitialPosition, MessageId

from geminga.bookie.entry_logs.entry_log_format import HEADER_BYTES
from geminga.bookie.journal.scan import JournalScan
from geminga.bookie.offline.inspection import (
    BadBytes,
    LogRecord,
    entry_log_ids,
    journal_files,
    records_end,
    walk_records,
)
from geminga.bookie.records.file_names import entry_log_path
from geminga.bookie.records.records import RECORD_PREFIX_BYTES
from geminga.storage.disk import RealDisk
from geminga.wire.stored_entry import STAMP_MAGIC
from tests.e2e.broker_process import BrokerProcess

SETTINGS = {
    "managedLedgerMaxEntriesPerLedger": "40",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "flushInterval": "300",
    "journalMaxSizeMB": "1",
    "journalMaxBackups": "1",
    "logSizeLimit": "1048576",
}
TOPICS = 3
BODY_BYTES = 300
PAUSE_S = 0.3
"""At most, between two folders of a copy."""
START_S_MAX = 60
READ_MS_MAX = 4000
Place = tuple[int, int]
"""Ledger and entry."""
_RANGE = re.compile(r"(\d+):(\d+) to \d+:(\d+)")
_PAYLOAD = re.compile(rb"entry-[0-9]+-[0-9]+\.")


@dataclass
class Verdict:
    copies: int = 0
    refused: int = 0
    aside: int = 0
    short: int = 0
    """Started with confirmed entries missing."""
    entries: int = 0
    """Whose bytes were in the copies."""
    named: int = 0
    """Receipted, in no file of the copy, and in a range that was named."""
    failures: list[str] = field(default_factory=list)


class Load:
    """Producers that never stop, and one subscription that keeps all they write."""

    def __init__(self, url: str, directory: Path) -> None:
        logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, str(directory / "clients.log"))
        self._client = pulsar.Client(url, logger=logger)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._receipts: dict[Place, bytes] = {}
        self._threads = []
        for number in range(TOPICS):
            topic = topic_name(number)
            self._client.subscribe(topic, "keeper", initial_position=InitialPosition.Earliest).close()
            thread = threading.Thread(target=self._produce, args=(topic, number), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _produce(self, topic: str, number: int) -> None:
        producer = self._client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
        count = 0
        while not self._stop.is_set():
            for _ in range(10):
                body = b"entry-%d-%d." % (number, count)
                producer.send_async(body.ljust(BODY_BYTES, b"x"), self._note(body))
                count += 1
            self._stop.wait(0.02)

    def _note(self, body: bytes) -> Callable[[pulsar.Result, pulsar.MessageId], None]:
        def note(result: pulsar.Result, message_id: pulsar.MessageId) -> None:
            if result == pulsar.Result.Ok:
                with self._lock:
                    self._receipts[message_id.ledger_id(), message_id.entry_id()] = body

        return note

    def receipts(self) -> dict[Place, bytes]:
        with self._lock:
            return dict(self._receipts)

    def wait_for(self, count: int) -> None:
        while len(self._receipts) < count:
            self._stop.wait(0.01)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(10)


def topic_name(number: int) -> str:
    return f"persistent://public/default/copied-{number}"


# ---- what a copy holds


def entries_in(data_dir: Path) -> dict[Place, bytes]:
    """Every message whose bytes are whole in some file of the bookie, by its place."""
    disk, found = RealDisk(), {}
    logs = str(data_dir / "bookie" / "entry-logs")
    for log_id in entry_log_ids(disk, logs):
        file = disk.open(entry_log_path(logs, log_id))
        for record in walk_records(file, HEADER_BYTES, records_end(file)):
            if isinstance(record, BadBytes):
                continue
            assert isinstance(record, LogRecord)
            body = file.pread(record.offset + RECORD_PREFIX_BYTES, record.body_bytes)
            _keep(found, record.ledger_id, record.entry_id, body)
        file.close()
    for journal in journal_files(disk, str(data_dir / "bookie" / "journal")):
        if journal.header is None:
            continue
        file = disk.open(journal.path)
        for group in JournalScan(file, journal.header, synced_end=None).groups(0):
            for segment in group.segments:
                for number, body in enumerate(segment.bodies(segment.first, segment.last)):
                    _keep(found, segment.ledger_id, segment.first + number, bytes(body))
        file.close()
    return found


def _keep(found: dict[Place, bytes], ledger_id: int, entry_id: int, body: bytes) -> None:
    payload = _PAYLOAD.search(body) if body.startswith(STAMP_MAGIC) else None
    if payload is not None:
        found[ledger_id, entry_id] = payload[0]


# ---- what a copy serves


def judge(copy: Path, receipts: dict[Place, bytes], verdict: Verdict, name: str) -> None:
    there = entries_in(copy)
    said = []
    broker = BrokerProcess(copy, settings=SETTINGS)
    verdict.copies += 1
    verdict.entries += len(there)
    if not _starts(broker):
        text = broker.log_path.read_text()
        if "unrecorded restore" not in text:
            verdict.failures.append(f"{name}: refused without a command: {text[-600:]}")
            return
        verdict.refused += 1
        said.append(_restore(copy))
        if not _starts(broker):
            verdict.failures.append(f"{name}: refused after restore: {broker.log_path.read_text()[-600:]}")
            return
    elif "unrecorded restore" in (text := broker.log_path.read_text()):
        verdict.aside += "They are set aside" in text
        verdict.short += "confirmed entries are not in the bookie" in text
        broker.stop()
        said.append(text)
        said.append(_restore(copy))
        broker.start()
    said.append(broker.log_path.read_text())
    ranges = [tuple(map(int, found)) for text in said for found in _RANGE.findall(text)]

    def is_named(place: Place) -> bool:
        return any(ledger == place[0] and first <= place[1] <= last for ledger, first, last in ranges)

    served = _read_all(broker.endpoints.service_url, copy, there, is_named)
    broker.stop()
    lost = sorted(place for place, body in there.items() if served.get(place) != body)
    if lost:
        verdict.failures.append(f"{name}: {len(lost)} entries of the copy are not served: {lost[:5]}")
    absent = [place for place in receipts if place not in there]
    unnamed = sorted(place for place in absent if not is_named(place))
    verdict.named += len(absent) - len(unnamed)
    if unnamed:
        verdict.failures.append(
            f"{name}: {len(unnamed)} receipted entries are in no file and not named: {unnamed[:5]}"
        )


def _starts(broker: BrokerProcess) -> bool:
    try:
        broker.start()
    except AssertionError:
        return False
    return True


def _restore(copy: Path) -> str:
    """As the broker says."""
    run = subprocess.run(
        [sys.executable, "-m", "geminga", "bookie", "unrecorded", "restore", "--data-dir", str(copy)],
        capture_output=True,
        text=True,
        timeout=START_S_MAX,
    )
    return run.stdout + run.stderr


def _read_all(
    url: str, copy: Path, there: dict[Place, bytes], is_named: Callable[[Place], bool]
) -> dict[Place, bytes]:
    """All messages by place. A reader that is stuck at a named entry goes on behind it."""
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, str(copy.with_name("readers.log")))
    client = pulsar.Client(url, logger=logger)
    found: dict[Place, bytes] = {}
    for number in range(TOPICS):
        mine = sorted(place for place, body in there.items() if body.startswith(b"entry-%d-" % number))
        if not mine:
            continue
        start = MessageId.earliest
        while True:
            reader = client.create_reader(topic_name(number), start)
            try:
                while reader.has_message_available():
                    message = reader.read_next(READ_MS_MAX)
                    place = message.message_id().ledger_id(), message.message_id().entry_id()
                    payload = _PAYLOAD.search(message.data())
                    found[place] = payload[0] if payload is not None else b""
            except pulsar.PulsarException:
                pass  # it is stuck, or the last entry cannot be read: judged by what is missing
            finally:
                reader.close()
            behind = max((place for place in found if place in mine), default=(-1, -1))
            ahead = [place for place in mine if place > behind]
            if not ahead or not is_named((ahead[0][0], ahead[0][1] - 1)):
                break
            start = MessageId(-1, ahead[0][0], ahead[0][1] - 1, -1)
    client.close()
    return found


# ---- the runs


def run_copies(
    copies: int, directory: Path, *, seed: int, say: Callable[[str], None] = lambda line: None
) -> Verdict:
    """Copy a loaded broker's directory so many times, then judge each copy."""
    dice, verdict = random.Random(seed), Verdict()
    broker = BrokerProcess(directory / "data", settings=SETTINGS)
    taken = []
    with broker:
        load = Load(broker.endpoints.service_url, directory)
        load.wait_for(200)
        pause = threading.Event()
        for number in range(copies):
            pause.wait(dice.random() * 0.5)
            receipts = load.receipts()
            copy = directory / f"copy-{number}"
            copy.mkdir()
            folders = ["metadata", "index", "bookie"]
            dice.shuffle(folders)
            for folder in folders:
                subprocess.run(["cp", "-a", str(broker.data_dir / folder), str(copy)], check=False)
                pause.wait(dice.random() * PAUSE_S)
            taken.append((copy, receipts, "-".join(folders)))
        load.stop()
    for copy, receipts, order in taken:
        judge(copy, receipts, verdict, f"{copy.name} ({order}, seed {seed})")
        say(f"{copy.name} {order}: {len(receipts)} receipts; failures so far {len(verdict.failures)}")
        if not verdict.failures:
            shutil.rmtree(copy)
    return verdict


def run_wal_cuts(
    cuts: int, directory: Path, *, receipts: int = 600, say: Callable[[str], None] = lambda line: None
) -> Verdict:
    """Kill a loaded broker, cut the metadata's log at so many places, and judge each."""
    verdict = Verdict()
    broker = BrokerProcess(directory / "data", settings=SETTINGS)
    broker.start()
    load = Load(broker.endpoints.service_url, directory)
    load.wait_for(receipts)
    held = load.receipts()
    broker.kill()
    load.stop()
    [wal] = (broker.data_dir / "metadata").glob("*.log")
    for number in range(cuts):
        copy = directory / f"cut-{number}"
        shutil.copytree(broker.data_dir, copy)
        os.truncate(copy / "metadata" / wal.name, wal.stat().st_size * number // cuts)
        judge(copy, held, verdict, f"cut {number} of {cuts}")
        say(f"{copy.name}: failures so far {len(verdict.failures)}")
        if not verdict.failures:
            shutil.rmtree(copy)
    return verdict


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Copy a running broker's files, and see what they serve.")
    parser.add_argument("--copies", type=int, default=0)
    parser.add_argument("--wal-cuts", type=int, default=0)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--keep", type=Path, help="a directory for the copies, which stay there")
    options = parser.parse_args(arguments)
    failed = False
    with tempfile.TemporaryDirectory(prefix="hot-copies-") as temporary:
        directory = options.keep or Path(temporary)
        runs = []
        if options.copies:
            (directory / "hot").mkdir(parents=True)
            runs.append(run_copies(options.copies, directory / "hot", seed=options.seed, say=_say))
        if options.wal_cuts:
            (directory / "cut").mkdir(parents=True)
            runs.append(run_wal_cuts(options.wal_cuts, directory / "cut", say=_say))
        for verdict in runs:
            print(
                f"{verdict.copies} copies: {verdict.refused} refused, {verdict.aside} with ledgers aside, "
                f"{verdict.short} short, {verdict.entries} entries in them; {verdict.named} absent ones named"
            )
            print("\n".join(verdict.failures) or "every entry in a copy is served, every absent one named")
            failed = failed or bool(verdict.failures)
    return 1 if failed else 0


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
