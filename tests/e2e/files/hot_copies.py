"""Copies of a data directory that a broker is writing to, and metadata logs that are cut: what do they serve?

    python -m tests.e2e.files.hot_copies --copies 200 --mixtures 60
    python -m tests.e2e.files.hot_copies --copies 6 --default-settings
    python -m tests.e2e.files.hot_copies --wal-cuts 20

A broker with small ledgers, logs and caches is loaded by official clients; meanwhile it compacts, trims and
deletes. At random moments its folders are copied with `cp -a`, in random order and with random pauses. A
mixture has each folder from another such copy of one broker. With `--default-settings` the pauses are so long
that a flush comes between two folders. With `--wal-cuts` the broker is killed instead, and the metadata's
write-ahead log cut at so many places. Each copy is started; where the broker refuses, or warns of ledgers set
aside, the command that it prints first is run, and it is started again. Then all topics are read. Judged is:

- an entry whose bytes are in an entry log or a journal of the copy is read, with the same bytes;
- an entry that was receipted before the copy began, is in none of its files, and lies before one that any of
  its files names, is in a range that the command or the broker's log names;
- what the first start and the command find is in their files afterwards.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pulsar
from pulsar import InitialPosition, MessageId

from geminga.bookie.entry_logs.entry_log_format import HEADER_BYTES
from geminga.bookie.index.ledger_index import LedgerIndex
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
from geminga.errors import StorageError
from geminga.metadata import records
from geminga.metadata.change_note import CHANGE_NOTE
from geminga.metadata.records import ManagedLedgerRecord
from geminga.metadata.store import MetadataStore
from geminga.names import TopicName
from geminga.storage.disk import RealDisk
from geminga.storage.key_value import RocksKeyValue
from geminga.wire.stored_entry import STAMP_MAGIC
from tests.e2e.broker_process import BrokerProcess

SETTINGS = {
    "managedLedgerMaxEntriesPerLedger": "40",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "flushInterval": "300",
    "journalMaxSizeMB": "1",
    "journalMaxBackups": "1",
    "logSizeLimit": "1048576",
    "gcWaitTime": "500",
    "minorCompactionThreshold": "0.7",
    "minorCompactionInterval": "1",
    "majorCompactionThreshold": "0.9",
    "majorCompactionInterval": "2",
    "retentionCheckIntervalInSeconds": "1",
}
FOLDERS = ("metadata", "index", "bookie/journal", "bookie/entry-logs", f"bookie/{CHANGE_NOTE}")
TOPICS = 3
"""Topics that keep everything. As many others are consumed at once and trimmed, and one is deleted again and
again.
"""
BODY_BYTES = 1000
PAUSE_S = 2.0
"""At most, between two folders of a copy."""
DEFAULT_PAUSE_S = 65.0
COPIES_AT_ONCE = 4
COPIES_OF_ONE_BROKER = 20
STARTS_MAX = 4
START_S_MAX = 60
READ_MS_MAX = 4000
COUNTS = ("copies", "refused", "aside", "mismatched", "short", "entries", "named", "at_ends")
Place = tuple[int, int]
"""Ledger and entry."""
_RANGE = re.compile(r"(\d+):(\d+) to \d+:(\d+)")
_ENTRIES = re.compile(r"entr(?:y|ies) (\d+)(?: to (\d+))? of ledger (\d+)")
_COMMAND = re.compile(r"geminga bookie (unrecorded restore|rebuild-index) ")
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
    at_ends: int = 0
    """Receipted, in no file of the copy, and behind all that its files name of that ledger."""
    mismatched: int = 0
    """Starts that found files of several moments."""
    failures: list[str] = field(default_factory=list)


class Load:
    """Producers that never stop, and one subscription that keeps all they write."""

    def __init__(self, url: str, web_url: str, directory: Path) -> None:
        logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, str(directory / "clients.log"))
        self._client = pulsar.Client(url, logger=logger)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._receipts: dict[Place, bytes] = {}
        self._threads = []
        for number in range(TOPICS):
            topic = topic_name(number)
            self._client.subscribe(topic, "keeper", initial_position=InitialPosition.Earliest).close()
            self._begin(self._produce, topic, number)
            self._begin(self._churn, f"{topic}-churn", number)
        self._begin(self._delete, f"{topic_name(0)}-deleted", web_url)

    def _begin(self, target: Callable[..., None], *arguments: object) -> None:
        def run() -> None:
            # The broker may be killed under it.
            with contextlib.suppress(pulsar.PulsarException):
                target(*arguments)

        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _produce(self, topic: str, number: int) -> None:
        producer = self._client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
        count = 0
        while not self._stop.is_set():
            for _ in range(5):
                body = b"entry-%d-%d." % (number, count)
                producer.send_async(body.ljust(BODY_BYTES, b"x"), self._note(body))
                count += 1
            self._stop.wait(0.05)

    def _churn(self, topic: str, number: int) -> None:
        """What is consumed at once: its ledgers are trimmed, and the logs compacted."""
        consumer = self._client.subscribe(topic, "churn")
        producer = self._client.create_producer(topic, batching_enabled=False)
        while not self._stop.is_set():
            for _ in range(10):
                producer.send_async(b"churn-%d" % number + bytes(BODY_BYTES), None)
            producer.flush()
            for _ in range(10):
                consumer.acknowledge(consumer.receive())
            self._stop.wait(0.05)

    def _delete(self, topic: str, web_url: str) -> None:
        path = topic.replace("persistent://", "persistent/")
        while not self._stop.is_set():
            producer = self._client.create_producer(topic, batching_enabled=False)
            for _ in range(30):
                producer.send(bytes(BODY_BYTES))
            producer.close()
            request = urllib.request.Request(f"{web_url}/admin/v2/{path}?force=true", method="DELETE")
            with contextlib.suppress(OSError):
                urllib.request.urlopen(request, timeout=10).close()
            self._stop.wait(0.3)

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


def _is_of(body: bytes, number: int) -> bool:
    return body.startswith(b"entry-%d-" % number)


def _keep(found: dict[Place, bytes], ledger_id: int, entry_id: int, body: bytes) -> None:
    payload = _PAYLOAD.search(body) if body.startswith(STAMP_MAGIC) else None
    if payload is not None:
        found[ledger_id, entry_id] = payload[0]


# ---- what a copy serves


def judge(
    copy: Path, receipts: dict[Place, bytes], verdict: Verdict, name: str, settings: dict[str, str]
) -> None:
    there = entries_in(copy)
    highest = highest_named(copy, there)
    broker = BrokerProcess(copy, settings=settings)
    verdict.copies += 1
    verdict.entries += len(there)
    said = ""
    for _ in range(STARTS_MAX):
        begin = broker.log_path.stat().st_size if broker.log_path.exists() else 0
        is_up = _starts(broker)
        text = broker.log_path.read_text()[begin:]
        said += text
        verdict.mismatched += "mismatch: " in text
        verdict.short += "confirmed entries are not in the bookie" in text
        if (command := _COMMAND.search(text)) is None:
            if not is_up:
                verdict.failures.append(f"{name}: refused without a command: {text[-600:]}")
                return
            break
        if is_up:
            verdict.aside += 1
            broker.stop()
            _note_deleted(copy, there, verdict, f"{name}: the first start")
        else:
            verdict.refused += 1
        while command is not None:
            text = _run(command[1], copy)
            if "no file names the topic of" in text:
                # An operator knows the topics of an application; here the payloads say them.
                for number in range(TOPICS):
                    mine = {str(place[0]) for place, body in there.items() if _is_of(body, number)}
                    text += _run(f"{command[1]} {' '.join(sorted(mine))} --topic {topic_name(number)}", copy)
            said += text
            _note_deleted(copy, there, verdict, f"{name}: {command[1]}")
            # What it says in turn is followed, too, unless it only names itself.
            following = _COMMAND.search(text)
            command = following if following is not None and following[1] != command[1] else None
    else:
        verdict.failures.append(f"{name}: not settled after {STARTS_MAX} starts: {said[-600:]}")
        return
    ranges = [tuple(map(int, found)) for found in _RANGE.findall(said)]
    ranges += [(int(of), int(first), int(last or first)) for first, last, of in _ENTRIES.findall(said)]

    def is_named(place: Place) -> bool:
        return any(ledger == place[0] and first <= place[1] <= last for ledger, first, last in ranges)

    served = _read_all(broker.endpoints.service_url, copy, there)
    broker.stop()
    _note_deleted(copy, there, verdict, f"{name}: the start that serves")
    lost = sorted(place for place, body in there.items() if served.get(place) != body)
    if lost:
        verdict.failures.append(f"{name}: {len(lost)} entries of the copy are not served: {lost[:5]}")
    absent = [place for place in receipts if place not in there]
    at_ends = [place for place in absent if place[1] > highest.get(place[0], -1)]
    unnamed = sorted(place for place in set(absent) - set(at_ends) if not is_named(place))
    verdict.at_ends += len(at_ends)
    verdict.named += len(absent) - len(at_ends) - len(unnamed)
    if unnamed:
        verdict.failures.append(
            f"{name}: {len(unnamed)} receipted entries are in no file and not named: {unnamed[:5]}"
        )


def highest_named(copy: Path, there: dict[Place, bytes]) -> dict[int, int]:
    """By ledger, the last entry that any file of the copy names: logs, journals, index, and the metadata's
    counts of closed ledgers. Databases that cannot be opened name nothing.
    """
    highest: dict[int, int] = {}
    for ledger_id, entry_id in there:
        highest[ledger_id] = max(entry_id, highest.get(ledger_id, -1))
    for ledger_id, entry_id in (*_in_index(copy), *_in_metadata(copy)):
        highest[ledger_id] = max(entry_id, highest.get(ledger_id, -1))
    return highest


def _in_index(copy: Path) -> Iterator[Place]:
    with contextlib.suppress(StorageError):
        values = RocksKeyValue(str(copy / "index"), read_only=True)
        try:
            index = LedgerIndex(values)
            index.load()
            for ledger_id in index.ledgers():
                if not index.is_deleted(ledger_id):
                    yield ledger_id, index.last_entry_id(ledger_id)
        finally:
            values.close()


def _in_metadata(copy: Path) -> Iterator[Place]:
    with contextlib.suppress(StorageError):
        values = RocksKeyValue(str(copy / "metadata"), read_only=True)
        try:
            store = MetadataStore(values)
            for number in range(TOPICS):
                path = records.managed_ledger_path(TopicName.parse(topic_name(number)))
                held = store.get(path)
                if held is not None:
                    for info in records.decode(ManagedLedgerRecord, held.value, path).ledgers:
                        yield info.ledger_id, info.entries - 1
        finally:
            values.close()


def _note_deleted(copy: Path, there: dict[Place, bytes], verdict: Verdict, what: str) -> None:
    gone = there.keys() - entries_in(copy).keys()
    if gone:
        verdict.failures.append(f"{what} deletes the bytes of {len(gone)} entries: {sorted(gone)[:5]}")


def _starts(broker: BrokerProcess) -> bool:
    try:
        broker.start()
    except AssertionError:
        return False
    return True


def _run(command: str, copy: Path) -> str:
    """As the broker says."""
    run = subprocess.run(
        [sys.executable, "-m", "geminga", "bookie", *command.split(), "--data-dir", str(copy)],
        capture_output=True,
        text=True,
        timeout=START_S_MAX,
    )
    return run.stdout + run.stderr


def _read_all(url: str, copy: Path, there: dict[Place, bytes]) -> dict[Place, bytes]:
    """All messages by place. A reader that is stuck goes on with the next entry that is there."""
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, str(copy.with_name("readers.log")))
    client = pulsar.Client(url, logger=logger)
    found: dict[Place, bytes] = {}
    for number in range(TOPICS):
        mine = sorted(place for place, body in there.items() if _is_of(body, number))
        if not mine:
            continue
        start: Place | None = None
        while True:
            # Inclusive: a broker begins with the start itself, which a reader behind a gap must not ask for.
            first = MessageId(-1, *start, -1) if start is not None else MessageId.earliest
            reader = client.create_reader(topic_name(number), first, start_message_id_inclusive=True)
            try:
                # Not as long as there is one by the last message id: that one may be lost.
                while any(place not in found for place in mine):
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
            if not ahead or start == ahead[0]:
                break
            start = ahead[0]
    client.close()
    return found


# ---- the runs


def run_copies(
    copies: int,
    directory: Path,
    *,
    seed: int,
    mixtures: int = 0,
    default_settings: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Verdict:
    """Copy a loaded broker's directory so many times, and mix so many out of the copies; then judge each."""
    dice, verdict = random.Random(seed), Verdict()
    settings = {} if default_settings else SETTINGS
    pause_s = DEFAULT_PAUSE_S if default_settings else PAUSE_S
    broker = BrokerProcess(directory / "data", settings=settings)
    taken: list[tuple[Path, dict[Place, bytes], str]] = []

    def take(number: int, folders: Sequence[str], pauses: Sequence[float]) -> None:
        threading.Event().wait(pauses[-1])
        receipts = load.receipts()
        copy = directory / f"copy-{number}"
        (copy / "bookie").mkdir(parents=True)
        shutil.copy(broker.data_dir / "bookie" / "cookie", copy / "bookie")
        for folder, pause in zip(folders, pauses, strict=False):
            subprocess.run(
                ["cp", "-a", str(broker.data_dir / folder), str((copy / folder).parent)], check=False
            )
            threading.Event().wait(pause)
        taken.append((copy, receipts, "-".join(folders).replace("bookie/", "")))

    with broker:
        load = Load(broker.endpoints.service_url, broker.endpoints.web_url, directory)
        load.wait_for(200)
        with ThreadPoolExecutor(COPIES_AT_ONCE) as pool:
            for number in range(copies):
                folders = dice.sample(FOLDERS, len(FOLDERS))
                # Some copies are quick, and in some a journal is used again between two folders.
                longest = dice.choice((0.1, pause_s / 4, pause_s))
                pool.submit(take, number, folders, [dice.random() * longest for _ in FOLDERS])
        load.stop()
    whole = list(taken)
    for number in range(mixtures):
        copy = directory / f"mixture-{number}"
        (copy / "bookie").mkdir(parents=True)
        shutil.copy(broker.data_dir / "bookie" / "cookie", copy / "bookie")
        sources = [dice.choice(whole) for _ in FOLDERS]
        for folder, (source, _, _) in zip(FOLDERS, sources, strict=True):
            subprocess.run(["cp", "-a", str(source / folder), str((copy / folder).parent)], check=True)
        oldest = min((receipts for _, receipts, _ in sources), key=len)
        names = (
            f"{folder.removeprefix('bookie/')} of {of[0].name}"
            for folder, of in zip(FOLDERS, sources, strict=True)
        )
        taken.append((copy, oldest, ", ".join(names)))
    for copy, receipts, order in taken:
        failed = len(verdict.failures)
        kept = directory / f"{copy.name}-as-copied"
        shutil.copytree(copy, kept)
        judge(copy, receipts, verdict, f"{copy.name} ({order}, seed {seed})", settings)
        say(f"{copy.name} {order}: {len(receipts)} receipts; failures so far {len(verdict.failures)}")
        if len(verdict.failures) == failed:
            shutil.rmtree(copy)
            shutil.rmtree(kept)
    return verdict


def run_wal_cuts(
    cuts: int, directory: Path, *, receipts: int = 600, say: Callable[[str], None] = lambda line: None
) -> Verdict:
    """Kill a loaded broker, cut the metadata's log at so many places, and judge each."""
    verdict = Verdict()
    broker = BrokerProcess(directory / "data", settings=SETTINGS)
    broker.start()
    load = Load(broker.endpoints.service_url, broker.endpoints.web_url, directory)
    load.wait_for(receipts)
    held = load.receipts()
    broker.kill()
    load.stop()
    [wal] = (broker.data_dir / "metadata").glob("*.log")
    for number in range(cuts):
        copy = directory / f"cut-{number}"
        shutil.copytree(broker.data_dir, copy)
        os.truncate(copy / "metadata" / wal.name, wal.stat().st_size * number // cuts)
        judge(copy, held, verdict, f"cut {number} of {cuts}", SETTINGS)
        say(f"{copy.name}: failures so far {len(verdict.failures)}")
        if not verdict.failures:
            shutil.rmtree(copy)
    return verdict


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Copy a running broker's files, and see what they serve.")
    parser.add_argument("--copies", type=int, default=0)
    parser.add_argument("--mixtures", type=int, default=0, help="out of the copies")
    parser.add_argument("--default-settings", action="store_true", help="of the broker; takes minutes")
    parser.add_argument("--wal-cuts", type=int, default=0)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--keep", type=Path, help="a directory for the copies, which stay there")
    options = parser.parse_args(arguments)
    failed = False
    with tempfile.TemporaryDirectory(prefix="hot-copies-") as temporary:
        directory = options.keep or Path(temporary)
        runs = []
        left, mixtures, seed = options.copies, options.mixtures, options.seed
        while left > 0:
            of_one = min(left, COPIES_OF_ONE_BROKER)
            left -= of_one
            mixed = mixtures * of_one // (left + of_one)
            mixtures -= mixed
            place = directory / f"hot-{seed}"
            place.mkdir(parents=True)
            run = functools.partial(run_copies, default_settings=options.default_settings, say=_say)
            runs.append(run(of_one, place, seed=seed, mixtures=mixed))
            seed += 1
        if options.wal_cuts:
            (directory / "cut").mkdir(parents=True)
            runs.append(run_wal_cuts(options.wal_cuts, directory / "cut", say=_say))
        for verdict in runs:
            print("\n".join(verdict.failures) or "every entry in a copy is served, every absent one named")
            failed = failed or bool(verdict.failures)
        total = {key: sum(getattr(run, key) for run in runs) for key in COUNTS}
        print(
            "{copies} copies: {refused} refused, {aside} with ledgers aside, {mismatched} starts that found "
            "a mismatch, {short} short; {entries} entries in the copies; {named} absent ones named, "
            "{at_ends} behind all that a file names".format_map(total)
        )
    return 1 if failed else 0


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
