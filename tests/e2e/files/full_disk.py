"""A broker whose disks are full: is anything lost, what is answered, and does it go on afterwards?

    python -m tests.e2e.files.full_disk                                  # all cells; needs root for ext4
    python -m tests.e2e.files.full_disk --system tmpfs --resource inodes --directory journal
    python -m tests.e2e.files.full_disk --without-reserve                # RocksDB finds the disk full

Each cell is a file system (tmpfs, or ext4 in a file), what it lacks (bytes or inodes), and the directory
that is on it: data (all of the broker's files), journal, ledger, or metadata. In each cell, another program
takes the last byte or inode while clients are connected. Then the broker is asked to publish, make a topic,
read and acknowledge, change a policy, seal delayed messages, back up to another disk, stop, and start. Then
there is space again. The same is repeated with kill -9 in place of the stop. Judged are:

- every message with a receipt is read at the end, and no other message;
- what was acknowledged on the full disk stays acknowledged, once there was space;
- what was refused with an error is not there afterwards, and what was accepted is;
- a refusal says "disk full", and names the full disk's directory;
- the process ends only by the signal, with code 0 after SIGTERM;
- a start on the full disk ends with code 4, says so, and changes no file and no name.

Prints a table; exit code 1 if any cell has failed. The mounts are in a namespace of their own.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pulsar
from pulsar import ConsumerType, InitialPosition, MessageId

from geminga.clock import RealClock
from geminga.wire import pulsar_pb2 as pb
from tests.e2e.admin_http import Admin, Answer
from tests.e2e.binary_session import BinarySession, message_bytes, plain_metadata
from tests.e2e.broker_process import ROOT, BrokerProcess

SYSTEMS = ("tmpfs", "ext4")
RESOURCES = ("bytes", "inodes")
DIRECTORIES = ("data", "journal", "ledger", "metadata")
DISK_MIB = 320
INODES = 1500
NAMESPACED = "GEMINGA_FULL_DISK_NAMESPACE"
SETTINGS = {
    "diskCheckInterval": "200",
    "managedLedgerMaxEntriesPerLedger": "40",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "managedLedgerCursorMaxEntriesPerLedger": "5",
    "delayedDeliveryMinIndexCountPerBucket": "50",
    "defaultRetentionTimeInMinutes": "-1",
    "defaultRetentionSizeInMB": "-1",
}
TOPIC = "persistent://public/default/full"
DELAYED = "persistent://public/default/full-delayed"
SUBSCRIPTION = "worker"
BEFORE = 120
ACKNOWLEDGED_BEFORE, ACKNOWLEDGED_FULL = 30, 30
BUCKET_ROWS = 120
PROMPT_SECONDS = 20.0
"""A bound for hangs, no promise."""


@dataclass
class Cell:
    system: str
    resource: str
    directory: str
    verdicts: dict[str, str] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    receipts: int = 0

    @property
    def name(self) -> str:
        return f"{self.system} {self.resource} {self.directory}"

    def check(self, is_right: bool, text: str) -> None:
        if not is_right:
            self.failures.append(f"{self.name}: {text}")


class SmallDisk:
    """A mounted file system that can be filled and emptied."""

    def __init__(self, system: str, resource: str, path: Path) -> None:
        self.path = path
        self._resource = resource
        self._filled = path / "filler"
        path.mkdir(parents=True)
        if system == "tmpfs":
            options = f"size={DISK_MIB}m,nr_inodes={INODES}"
            run("mount", "-t", "tmpfs", "-o", options, "none", str(path))
        else:
            image = path.with_suffix(".img")
            run("truncate", "-s", f"{DISK_MIB}M", str(image))
            run("mkfs.ext4", "-q", "-F", "-N", str(INODES), "-m", "0", str(image))
            run("mount", "-o", "loop", str(image), str(path))
            (path / "lost+found").rmdir()

    def fill(self) -> None:
        """Take the last byte, or the last inode."""
        self._filled.mkdir()
        if self._resource == "inodes":
            number = 0
            while take((self._filled / str(number)).touch):
                number += 1
            return
        descriptor = os.open(self._filled / "bytes", os.O_CREAT | os.O_RDWR)
        size, step = 0, DISK_MIB << 20
        try:
            while step >= 512:
                if take(os.posix_fallocate, descriptor, size, step):
                    size += step
                else:
                    step //= 2
        finally:
            os.close(descriptor)

    def empty(self) -> None:
        shutil.rmtree(self._filled)

    def unmount(self) -> None:
        run("umount", "-l", str(self.path))


def take(call: Callable[..., object], *arguments: int) -> bool:
    """Whether there was space for it."""
    try:
        call(*arguments)
    except OSError:
        return False
    return True


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def hash_of(root: Path) -> dict[str, str]:
    """Every name below the directory, with the hash of its content."""
    found = {}
    for path in sorted(root.rglob("*")):
        if "filler" in path.parts:
            continue
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        found[str(path.relative_to(root))] = hashlib.sha256(content).hexdigest()
    return found


def wait_until(condition: Callable[[], bool]) -> bool:
    """Whether it became true."""
    end_s = time.monotonic() + PROMPT_SECONDS
    while time.monotonic() < end_s:
        if condition():
            return True
        time.sleep(0.05)  # noqa: TID251 - the broker does it on its own
    return False


class Trial:
    """One cell: the broker, its disk, and what an honest broker has to have."""

    def __init__(self, cell: Cell, root: Path, *, has_reserve: bool) -> None:
        self.cell = cell
        self.root = root
        self.disk = SmallDisk(cell.system, cell.resource, root / "disk")
        data = self.disk.path if cell.directory == "data" else root / "data"
        data.mkdir(exist_ok=True)
        settings = SETTINGS if has_reserve else SETTINGS | {"diskFreeBytesMin": "0"}
        settings = dict(settings)
        if cell.directory == "metadata":
            (data / "metadata").mkdir()
            run("mount", "--bind", str(self.disk.path), str(data / "metadata"))
        elif cell.directory != "data":
            settings[f"{cell.directory}Directories"] = str(self.disk.path)
        self.broker = BrokerProcess(data, settings=settings, log_path=root / "broker.log")
        if cell.directory == "data":
            # Its configuration file is beside the data directory by default.
            self.broker.data_dir = data
        self.full_directories = [
            str(self.disk.path),
            *([str(data / "metadata")] * (cell.directory == "metadata")),
        ]
        self.receipts: list[bytes] = []
        self.refused: set[bytes] = set()
        self.acknowledged: set[bytes] = set()
        self.delayed = 0
        self.topics: dict[str, bool] = {}
        """Topics that were asked for, and whether the broker made them."""
        self.retention: int | None = None
        self.sequence = 0

    @property
    def admin(self) -> Admin:
        return Admin(self.broker.endpoints.web_url)

    def client(self) -> pulsar.Client:
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        return pulsar.Client(self.broker.endpoints.service_url, operation_timeout_seconds=10, logger=logger)

    def run(self, *, is_quick: bool) -> None:
        self.broker.start()
        try:
            self.prepare()
            self.fill_once("stop")
            if not is_quick:
                self.fill_once("kill")
            self.compare()
            code = self.broker.stop()
            self.cell.check(code == 0, f"stop at the end: exit code {code}")
        finally:
            if self.broker.is_running():
                self.broker.kill()
            self.cell.receipts = len(self.receipts)
            text = self.broker.log_path.read_text(errors="replace")
            self.cell.check("Traceback" not in text, "a traceback in the log")
            if self.cell.directory == "metadata":
                run("umount", "-l", str(self.broker.data_dir / "metadata"))
            self.disk.unmount()

    def run_shortest(self) -> None:
        """One publish, topic, stop and start on the full disk."""
        self.broker.start()
        try:
            self.publish(1)
            self.disk.fill()
            self.publish_full()
            self.change_full("stop")
            code = self.broker.stop()
            self.cell.check(code == 0, f"stop: exit code {code}")
            self.start_full()
        finally:
            if self.broker.is_running():
                self.broker.kill()
            self.disk.unmount()

    def prepare(self) -> None:
        with_client = self.client()
        consumer = with_client.subscribe(
            TOPIC, SUBSCRIPTION, ConsumerType.Shared, initial_position=InitialPosition.Earliest
        )
        self.publish(BEFORE)
        for _ in range(ACKNOWLEDGED_BEFORE):
            message = consumer.receive(10_000)
            consumer.acknowledge(message)
            self.acknowledged.add(message.data())
        with_client.close()

    def fill_once(self, end: str) -> None:
        """One full disk; the process ends by SIGTERM or SIGKILL while it is full."""
        self.delay_messages()
        session_client = self.client()
        consumer = session_client.subscribe(TOPIC, SUBSCRIPTION, ConsumerType.Shared, receiver_queue_size=10)
        self.disk.fill()
        self.publish_full()
        self.change_full(end)
        self.read_full(consumer)
        waiter = self.seal_full(session_client)
        self.back_up(end)
        self.cell.check(self.broker.is_running(), "the process has ended")
        self.disk.empty()
        self.go_on(end)
        waiter.close()
        self.disk.fill()
        self.publish_full()
        session_client.close()
        code = self.broker.stop() if end == "stop" else self.broker.kill()
        self.cell.verdicts[end] = f"exit {code}"
        self.cell.check(code == (0 if end == "stop" else -9), f"{end}: exit code {code}")
        self.start_full()
        self.disk.empty()
        self.broker.start()

    # ---- what is asked

    def publish(self, count: int) -> str:
        """Publish over a raw session; "" or the text of the first error."""
        with BinarySession(self.broker.endpoints.binary_address) as session:
            session.connect()
            session.create_producer(TOPIC)
            for _ in range(count):
                self.sequence += 1
                body = b"message-%d" % self.sequence
                session.send(
                    pb.CommandSend(producer_id=1, sequence_id=self.sequence, num_messages=1),
                    message_bytes(plain_metadata(self.sequence), body),
                )
                answer = session.receive(PROMPT_SECONDS).command
                if isinstance(answer, pb.CommandSendReceipt):
                    self.receipts.append(body)
                    continue
                self.refused.add(body)
                return str(answer.message) if isinstance(answer, pb.CommandSendError) else f"? {answer}"
        return ""

    def publish_full(self) -> None:
        texts: list[str] = []

        def is_refused() -> bool:
            texts.append(self.publish(1))
            return bool(texts[-1])

        # Until the next look at the disk, what was reserved before may take some entries.
        self.cell.check(wait_until(is_refused), "publishes are not refused")
        self.cell.check("full" in texts[-1], f"publish: {texts[-1]!r}")
        self.cell.verdicts["publish"] = "refused"

    def change_full(self, end: str) -> None:
        """New topics until one is refused, and a policy."""
        is_there = self.cell.directory in ("data", "metadata")
        answer = Answer(0, b"", {})
        for number in range(50):
            topic = f"new-{end}-{number}"
            answer = self.admin.put(f"/admin/v2/persistent/public/default/{topic}", {"text": "x" * 500})
            self.topics[topic] = answer.status == 204
            if answer.status != 204:
                break
        self.judge("new topic", answer, is_there)
        minutes = 1000 + len(self.topics)
        answer = self.admin.post(
            "/admin/v2/namespaces/public/default/retention",
            {"retentionTimeInMinutes": minutes, "retentionSizeInMB": -1},
        )
        if answer.status == 204:
            self.retention = minutes
        self.judge("policy", answer, is_there)

    def judge(self, what: str, answer: Answer, is_metadata_full: bool) -> None:
        text = answer.text
        if answer.status == 204:
            self.cell.check(not is_metadata_full, f"{what}: accepted without space")
            self.cell.verdicts[what] = "done"
            return
        self.cell.verdicts[what] = f"{answer.status}"
        self.cell.check(
            answer.status == 507 and "disk full" in text, f"{what}: {answer.status} {text[:300]!r}"
        )
        self.cell.check(any(each in text for each in self.full_directories), f"{what}: {text[:300]!r}")

    def read_full(self, consumer: Any) -> None:
        for _ in range(ACKNOWLEDGED_FULL):
            message = consumer.receive(10_000)
            consumer.acknowledge(message)
            again = message.data() in self.acknowledged
            self.cell.check(not again, f"{message.data()!r} is delivered again, although acknowledged")
            self.acknowledged.add(message.data())
        self.cell.verdicts["acknowledge"] = "read"

    def delay_messages(self) -> None:
        """Delayed messages that no index has, because no consumer has read them."""
        client = self.client()
        client.subscribe(DELAYED, SUBSCRIPTION, ConsumerType.Shared).close()
        producer = client.create_producer(DELAYED)
        for number in range(BUCKET_ROWS):
            producer.send_async(b"%d" % number, lambda *_: None, deliver_at=RealClock().now_ms() + 3_600_000)
        producer.flush()
        self.delayed += BUCKET_ROWS
        client.close()

    def seal_full(self, client: pulsar.Client) -> Any:
        """A consumer, for which the delayed messages are read and sealed; it stays."""
        consumer = client.subscribe(DELAYED, SUBSCRIPTION, ConsumerType.Shared)
        return consumer

    def back_up(self, end: str) -> None:
        copy = self.root / f"copy-{end}"
        made = subprocess.run(
            [sys.executable, "-m", "geminga", "backup", str(copy), "--url", self.broker.endpoints.web_url],
            capture_output=True,
            text=True,
            cwd=ROOT,
        )
        self.cell.verdicts["backup"] = f"exit {made.returncode}"
        self.cell.check(made.returncode == 0, f"backup: {made.stderr}")
        if made.returncode:
            return
        given = [
            word
            for word in made.stdout.split()
            if word.startswith(("journalDirectories=", "ledgerDirectories="))
        ]
        settings = SETTINGS | dict(word.split("=", 1) for word in given)
        with BrokerProcess(copy, settings=settings) as broker:
            found = read_all(broker)
        self.cell.check(found == self.receipts, f"the copy has {len(found)} of {len(self.receipts)} messages")

    def go_on(self, end: str) -> None:
        """There is space again, and nothing was restarted."""

        def is_accepted() -> bool:
            return not self.publish(1)

        self.cell.check(wait_until(is_accepted), "publishes are refused although there is space")
        topic = f"again-{end}"

        def is_made() -> bool:
            return self.admin.put(f"/admin/v2/persistent/public/default/{topic}", {}).status == 204

        self.cell.check(wait_until(is_made), "no topic is made although there is space")
        self.topics[topic] = True

        def is_sealed() -> bool:
            page = self.admin.get("/metrics").text
            lines = [
                line
                for line in page.splitlines()
                if line.startswith("pulsar_delayed_message_index_bucket_total{")
            ]
            return any(float(line.rpartition(" ")[2]) > 0 for line in lines if "full-delayed" in line)

        sealed = wait_until(is_sealed)
        self.cell.verdicts["seal"] = "later" if sealed else "never"
        self.cell.check(sealed, "nothing is sealed although there is space")

    def start_full(self) -> None:
        roots = {self.broker.data_dir, self.disk.path}
        before = [hash_of(root) for root in sorted(roots)]
        ended = subprocess.run(
            self.broker.command(),
            capture_output=True,
            text=True,
            cwd=ROOT,
            timeout=60,
            stdin=subprocess.DEVNULL,
        )
        self.cell.verdicts["start"] = f"exit {ended.returncode}"
        self.cell.check(ended.returncode == 4, f"start: exit code {ended.returncode}: {ended.stderr[-500:]}")
        self.cell.check("disk full" in ended.stderr, f"start: {ended.stderr[-500:]}")
        self.cell.check(
            any(each in ended.stderr for each in self.full_directories), f"start: {ended.stderr[-500:]}"
        )
        after = [hash_of(root) for root in sorted(roots)]
        self.cell.check(before == after, f"start changed {changed(before, after)}")

    # ---- what there is

    def compare(self) -> None:
        found = read_all(self.broker)
        lost = len(set(self.receipts) - set(found))
        self.cell.verdicts["lost"] = str(lost)
        self.cell.check(lost == 0, f"{lost} of {len(self.receipts)} messages are lost")
        self.cell.check(
            found == self.receipts, "messages are there twice, in another order, or without a receipt"
        )
        self.cell.check(not self.refused & set(found), "a refused message is there")
        # What was acknowledged on the full disk was written when there was space, before the process ended.
        left, expected = self.admin.backlog(TOPIC, SUBSCRIPTION), len(self.receipts) - len(self.acknowledged)
        self.cell.check(left == expected, f"{left} messages are not acknowledged, not {expected}")
        topics = set(self.admin.get("/admin/v2/persistent/public/default").json())
        for topic, is_made in self.topics.items():
            is_there = f"persistent://public/default/{topic}" in topics
            self.cell.check(is_there == is_made, f"topic {topic}: made {is_made}, there {is_there}")
        answer = self.admin.get("/admin/v2/namespaces/public/default/retention")
        minutes = answer.json()["retentionTimeInMinutes"] if answer.body else None
        self.cell.check(minutes == self.retention, f"the retention is {minutes}, not {self.retention}")
        backlog = self.admin.backlog(DELAYED, SUBSCRIPTION)
        self.cell.check(backlog == self.delayed, f"{backlog} of {self.delayed} delayed messages")


def read_all(broker: BrokerProcess) -> list[bytes]:
    client = pulsar.Client(
        broker.endpoints.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    try:
        reader = client.create_reader(TOPIC, MessageId.earliest)
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(10_000).data())
        return found
    finally:
        client.close()


def changed(before: list[dict[str, str]], after: list[dict[str, str]]) -> list[str]:
    return [
        name
        for old, new in zip(before, after, strict=True)
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]


def run_cell(
    system: str, resource: str, directory: str, *, trial: Callable[[Trial], None], has_reserve: bool = True
) -> Cell:
    cell = Cell(system, resource, directory)
    with tempfile.TemporaryDirectory(prefix="full-disk-") as root:
        try:
            trial(Trial(cell, Path(root), has_reserve=has_reserve))
        except Exception as error:
            cell.failures.append(f"{cell.name}: {type(error).__name__}: {error}")
        log = Path(root) / "broker.log"
        if cell.failures and log.exists():  # no broker was started where a file system cannot be mounted
            print(log.read_text(errors="replace")[-6000:], file=sys.stderr)
    return cell


COLUMNS = ("publish", "new topic", "acknowledge", "policy", "seal", "backup", "stop", "kill", "start", "lost")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--system", choices=SYSTEMS)
    parser.add_argument("--resource", choices=RESOURCES)
    parser.add_argument("--directory", choices=DIRECTORIES)
    parser.add_argument("--without-reserve", action="store_true")
    parser.add_argument("--quick", action="store_true", help="without kill -9")
    parser.add_argument("--shortest", action="store_true", help="a few seconds on a tmpfs without bytes")
    flags = parser.parse_args()
    if NAMESPACED not in os.environ:
        unshare = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
        command = [*unshare, sys.executable, "-m", "tests.e2e.files.full_disk", *sys.argv[1:]]
        return subprocess.run(command, env=os.environ | {NAMESPACED: "1"}).returncode
    if flags.shortest:
        cell = run_cell("tmpfs", "bytes", "data", trial=Trial.run_shortest)
        print("\n".join(cell.failures))
        return 1 if cell.failures else 0
    failures: list[str] = []
    print(f"{'':24}" + "".join(f"{column:>13}" for column in (*COLUMNS, "receipts")))
    for system in [flags.system] if flags.system else SYSTEMS:
        for resource in [flags.resource] if flags.resource else RESOURCES:
            for directory in [flags.directory] if flags.directory else DIRECTORIES:
                cell = run_cell(
                    system,
                    resource,
                    directory,
                    trial=functools.partial(Trial.run, is_quick=flags.quick),
                    has_reserve=not flags.without_reserve,
                )
                shown = [cell.verdicts.get(column, "-") for column in COLUMNS] + [str(cell.receipts)]
                print(f"{cell.name:24}" + "".join(f"{word:>13}" for word in shown), flush=True)
                for failure in cell.failures:
                    print(f"  {failure}", flush=True)
                failures += cell.failures
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
