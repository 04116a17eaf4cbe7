"""Remove or cut files of a running broker under load, each kind in each way, and start a broker on the rest.

    python -m tests.e2e.files.removed_files [--only WORD] [--repeat 3]

Official clients publish meanwhile, and begin new topics all the time. For each case the table has the seconds
from the removal until the broker says so, the receipts that came later than that, and what the next start
serves. What a client has a receipt for is kept outside of the broker. A receipt is lost if the next start
does not serve its message. Exit code 1 if a broker did not notice within 5 seconds, or did not name the file;
if a receipt came after the notice; if a message is lost that was in memory, in an open file or in a journal
at the removal; if another one is lost without a word; or if the next start is refused.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pulsar

from geminga.bookie.entry_logs.entry_log_format import TRAILER_BYTES, TRAILER_MAGICS
from tests.e2e.broker_process import BrokerProcess
from tests.e2e.files.damaged_directories import TOLD
from tests.e2e.waiting import eventually

NOTICE_S_MAX = 5.0
GRACE_S = 0.25
"""A receipt that was sent before the notice may reach the program later by this much on a busy machine."""
BODY_BYTES = 2000
READ_MS = 3000
READERS = 16
PENDING_MAX = 50
"""Messages of one producer without a receipt."""
SMALL = {
    "flushInterval": "400",
    "journalMaxSizeMB": "1",
    "journalMaxBackups": "2",
    "logSizeLimit": "1048576",
    "managedLedgerMaxEntriesPerLedger": "500",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
}
UNFLUSHED = SMALL | {"flushInterval": "600000", "journalMaxBackups": "0"}
"""Nothing is flushed: each journal is needed, and what is in them is nowhere else."""
KEEPS = {"defaultRetentionTimeInMinutes": "-1", "defaultRetentionSizeInMB": "-1"}


class Case(NamedTuple):
    name: str
    files: Callable[[Path], Sequence[Path]]
    """What is removed of a data directory."""
    settings: Mapping[str, str] = SMALL
    remove: Callable[[Path], object] = Path.unlink
    may_lose: bool = False
    """Whether bytes may be lost that were in no open file and in no journal; the broker then says so."""


class Outcome(NamedTuple):
    noticed_s: float
    receipts: int
    late: int
    """Receipts after the notice."""
    lost: int
    exit_code: int
    is_named: bool
    """Whether the broker named one of the files at its end."""
    said: str
    """What it said."""
    served: int
    told: str
    """What the next start said of losses."""

    def failure(self, case: Case) -> str:
        """What is wrong; "" if nothing is."""
        if self.noticed_s > NOTICE_S_MAX:
            return "noticed too late"
        if self.exit_code != 1:
            return f"exit code {self.exit_code}"
        if not self.is_named:
            return "no file named"
        if self.late:
            return "receipts after the notice"
        if "Traceback" in self.said:
            return "traceback"
        if self.lost and not (case.may_lose and self.told):
            return "lost"
        return ""


def journals(data: Path) -> list[Path]:
    return sorted(data.glob("bookie/journal/*.journal"))


def logs(data: Path) -> list[Path]:
    return sorted(data.glob("bookie/entry-logs/*.log"))


def open_log(data: Path) -> list[Path]:
    """Nothing unless it was begun since the start: the last start's logs have their footers."""
    return [
        log for log in logs(data)[-1:] if not log.read_bytes()[-TRAILER_BYTES:].startswith(TRAILER_MAGICS)
    ]


def all_files(data: Path) -> list[Path]:
    return [path for path in data.rglob("*") if path.is_file()]


def below(name: str, pattern: str) -> Callable[[Path], list[Path]]:
    return lambda data: sorted(data.glob(f"{name}/{pattern}"))


def move_away(path: Path) -> None:
    path.rename(path.with_name(path.name + ".moved"))


def replace(path: Path) -> None:
    copy = path.with_name(path.name + ".copy")
    copy.write_bytes(path.read_bytes())
    path.unlink()
    copy.rename(path)


def copytruncate(path: Path) -> None:
    """As logrotate does it, without the copy."""
    os.truncate(path, 0)


CASES = [
    Case("open journal", lambda data: journals(data)[-1:]),
    Case("open journal, nothing flushed", lambda data: journals(data)[-1:], UNFLUSHED),
    Case("closed journal, spare", lambda data: journals(data)[:1]),
    Case("closed journal, needed", lambda data: journals(data)[:1], UNFLUSHED),
    Case("all journals", journals),
    Case("all journals, nothing flushed", journals, UNFLUSHED),
    Case("open journal, moved", lambda data: journals(data)[-1:], {}, move_away),
    Case("open journal, replaced by a copy", lambda data: journals(data)[-1:], {}, replace),
    Case("open entry log", open_log),
    Case("open entry log, default settings", open_log, {}),
    Case("closed entry log, default settings", lambda data: logs(data)[:1], {}),
    Case("open entry log, moved", open_log, SMALL, move_away),
    Case("closed entry log, newest", lambda data: logs(data)[-2:-1], may_lose=True),
    Case("closed entry log, oldest", lambda data: logs(data)[:1], may_lose=True),
    Case("all entry logs", logs, may_lose=True),
    Case("all entry logs, default settings", logs, {}),
    Case("index WAL", below("index", "*.log")),
    Case("index table", below("index", "*.sst")),
    Case("index manifest", below("index", "MANIFEST-*")),
    Case("index CURRENT", below("index", "CURRENT")),
    Case("all of index", below("index", "*")),
    Case("metadata WAL", below("metadata", "*.log")),
    Case("metadata table", below("metadata", "*.sst")),
    Case("metadata manifest", below("metadata", "MANIFEST-*")),
    Case("metadata CURRENT", below("metadata", "CURRENT")),
    Case("all of metadata", below("metadata", "*")),
    Case("cookie", below("bookie", "cookie")),
    Case("lock", below("bookie", "lock")),
    Case("*.log everywhere", lambda data: sorted(data.rglob("*.log")), may_lose=True),
    Case("*.log everywhere, default settings", lambda data: sorted(data.rglob("*.log")), {}),
    Case("every file, default settings", all_files, {}, may_lose=True),
    Case("open journal, cut", lambda data: journals(data)[-1:], SMALL, copytruncate),
    Case("open entry log, cut", open_log, SMALL, copytruncate, may_lose=True),
    Case("index WAL, cut", below("index", "*.log"), SMALL, copytruncate),
    Case("metadata WAL, cut", below("metadata", "*.log"), SMALL, copytruncate),
    Case("*.log everywhere, cut", lambda data: sorted(data.rglob("*.log")), {}, copytruncate),
]


class Receipt(NamedTuple):
    when_s: float
    topic: str
    number: int
    message_id: pulsar.MessageId


class Load:
    """Publishes until the broker is gone, and keeps what got a receipt."""

    def __init__(self, service_url: str, *, first_number: int = 0) -> None:
        self._first_number = first_number
        self.receipts: list[Receipt] = []
        # Each pending message of a producer that ends is an error to the client: no test needs to read that.
        silent = pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull)
        self._client = pulsar.Client(service_url, operation_timeout_seconds=3, logger=silent)
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._publish, args=(number,), daemon=True) for number in range(2)
        ]
        self._threads.append(threading.Thread(target=self._begin_topics, daemon=True))
        for thread in self._threads:
            thread.start()

    def wait_for(self, receipts: int) -> None:
        eventually(lambda: len(self.receipts) >= receipts, 60, what="receipts")

    def stop(self) -> None:
        self._stopped.set()
        # First: a thread that waits for an answer when the client is closed waits for ever.
        for thread in self._threads:
            thread.join()
        with contextlib.suppress(pulsar.PulsarException):  # its broker is gone
            self._client.close()

    def _publish(self, producer_number: int) -> None:
        topic = f"persistent://public/default/removed-{producer_number}"
        pending = threading.Semaphore(PENDING_MAX)
        try:
            producer = self._client.create_producer(topic, batching_enabled=False)
            number = self._first_number
            while not self._stopped.is_set():
                # Not the client's own wait for room, which does not end with its broker.
                if pending.acquire(timeout=0.1):
                    producer.send_async(body(topic, number), self._noted(topic, number, pending))
                    number += 1
        except pulsar.PulsarException:
            return

    def _begin_topics(self) -> None:
        number = self._first_number
        try:
            while not self._stopped.is_set():
                topic = f"persistent://public/default/begun-{number}"
                producer = self._client.create_producer(topic, send_timeout_millis=3000)
                message_id = producer.send(body(topic, 0))
                self.receipts.append(Receipt(time.monotonic(), topic, 0, message_id))
                number += 1
                self._stopped.wait(0.05)
        except pulsar.PulsarException:
            return

    def _noted(
        self, topic: str, number: int, pending: threading.Semaphore
    ) -> Callable[[pulsar.Result, pulsar.MessageId], None]:
        def note(result: pulsar.Result, message_id: pulsar.MessageId) -> None:
            pending.release()
            if result == pulsar.Result.Ok:
                self.receipts.append(Receipt(time.monotonic(), topic, number, message_id))

        return note


def body(topic: str, number: int) -> bytes:
    return f"{topic} {number} ".encode().ljust(BODY_BYTES, b"x")


def run_case(case: Case, root: Path, *, receipts: int = 2500) -> Outcome:
    """Under `root`, which is empty."""
    data, log = root / "data", root / "broker.log"
    broker = BrokerProcess(data, settings=case.settings | KEEPS, log_path=log)
    broker.start()
    first = Load(broker.endpoints.service_url)
    first.wait_for(50)
    first.stop()
    broker.stop()  # from the second start on the databases have tables
    broker.start()
    load = Load(broker.endpoints.service_url, first_number=1_000_000)
    load.wait_for(receipts)
    files: list[Path] = []
    removed_s = time.monotonic()
    # Again if the broker went on to another file meanwhile: a journal that is needed no more is overwritten
    # as well cut as whole, and there is nothing to notice.
    while not files or (case.remove is copytruncate and broker.is_running() and case.files(data) != files):
        files = eventually(lambda: case.files(data), 60, what=case.name)
        removed_s = time.monotonic()
        for path in files:
            try:
                case.remove(path)
            except FileNotFoundError:
                continue  # the broker was faster
    noticed_s = wait_for_notice(broker, log)
    exit_code = broker.kill() if noticed_s == math.inf else broker.wait()
    ended = first.receipts + load.receipts
    load.stop()
    said = log.read_text()
    log.unlink()
    broker.start()
    served = read_all(broker.endpoints.service_url, ended)
    told = next((line for line in log.read_text().splitlines() if TOLD.search(line)), "")
    broker.stop()
    lost = [each for each in ended if (each.topic, each.number) not in served]
    late = sum(each.when_s > noticed_s + GRACE_S for each in ended)
    is_named = any(str(path) in said for path in files)
    return Outcome(
        noticed_s - removed_s, len(ended), late, len(lost), exit_code, is_named, said, len(served), told
    )


def wait_for_notice(broker: BrokerProcess, log: Path) -> float:
    """When the broker said it; infinitely late if it did not."""
    try:
        eventually(lambda: "CRITICAL" in log.read_text() or not broker.is_running(), 3 * NOTICE_S_MAX)
        return time.monotonic()
    except AssertionError:
        return math.inf


def read_all(service_url: str, receipts: Sequence[Receipt]) -> set[tuple[str, int]]:
    """(topic, number) of the messages that are served."""
    topics: dict[str, list[Receipt]] = {}
    for receipt in receipts:
        topics.setdefault(receipt.topic, []).append(receipt)
    client = pulsar.Client(
        service_url,
        logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull),
        operation_timeout_seconds=10,
    )
    try:
        # At the same time: each lost message is a wait.
        with ThreadPoolExecutor(READERS) as readers:
            parts = readers.map(lambda topic: read_topic(client, topic, topics[topic]), topics)
            return {(topic, number) for topic, part in zip(topics, parts, strict=True) for number in part}
    finally:
        client.close()


def read_topic(client: pulsar.Client, topic: str, receipts: Sequence[Receipt]) -> set[int]:
    """The numbers of the messages of a topic that are served, also those behind lost ones."""
    numbers: set[int] = set()
    start = pulsar.MessageId.earliest
    receipts = sorted(receipts, key=lambda each: each.number)
    while True:
        numbers |= read_from(client, topic, start)
        left = [each for each in receipts if each.number not in numbers]
        low, high = 0, 0
        # What is lost is a run. Find its end, since no consumer gets beyond it by itself.
        while high < len(left) and not read_from(client, topic, left[high].message_id, 1):
            low = high + 1
            high = len(left) if low == len(left) else min(2 * high + 1, len(left) - 1)
        if high >= len(left):
            return numbers
        while low < high:
            middle = (low + high) // 2
            if read_from(client, topic, left[middle].message_id, 1):
                high = middle
            else:
                low = middle + 1
        start = left[high].message_id


def read_from(
    client: pulsar.Client, topic: str, start: pulsar.MessageId, messages_max: int = sys.maxsize
) -> set[int]:
    """The numbers of the messages from this one on, until one cannot be read."""
    numbers: set[int] = set()
    try:
        reader = client.create_reader(topic, start, start_message_id_inclusive=True, receiver_queue_size=500)
        try:
            while len(numbers) < messages_max and reader.has_message_available():
                data = reader.read_next(READ_MS).data()
                number = int(data.split(b" ", 2)[1])
                assert data == body(topic, number), data[:80]
                numbers.add(number)
        finally:
            reader.close()
    except pulsar.PulsarException:
        pass  # what cannot be read is lost
    return numbers


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="WORD")
    parser.add_argument("--repeat", type=int, default=1, metavar="N")
    parser.add_argument("--verbose", action="store_true")
    flags = parser.parse_args()
    failures = 0
    print(f"{'removed':40} {'noticed':>8} {'receipts':>8} {'late':>5} {'lost':>5}  the next start")
    for case in [case for case in CASES if flags.only in case.name] * flags.repeat:
        with tempfile.TemporaryDirectory() as name:
            outcome = run_case(case, Path(name))
        failure = outcome.failure(case)
        failures += bool(failure)
        row = f"{case.name:40} {outcome.noticed_s:6.2f} s {outcome.receipts:8} {outcome.late:5}"
        row += f" {outcome.lost:5}  serves {outcome.served}"
        print(row, f"FAILED: {failure}" if failure else "", flush=True)
        if failure or flags.verbose:
            print(outcome.said[-3000:], outcome.told, sep="\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
