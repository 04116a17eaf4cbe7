"""Promises about syncs, held against the system calls that a running broker makes.

Needs strace, and for the full disk user namespaces; without them the tests say so. The full disk takes a
minute: it runs when GEMINGA_LONG is set.
"""

from __future__ import annotations

import os
import queue
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pulsar
import pytest

from geminga.bookie.running.bookie import Bookie
from geminga.storage import real_file
from geminga.wire import pulsar_pb2 as pb
from tests.chaos.sync_order import TRACED, check_order
from tests.e2e.binary_session import BinarySession, ConnectionEnded, message_bytes, plain_metadata
from tests.e2e.broker_process import BrokerProcess
from tests.e2e.child_process import ends_with_parent

STRACE = shutil.which("strace")
TOPIC = "persistent://public/default/synced"
MESSAGES = 1000

needs_strace = pytest.mark.skipif(STRACE is None, reason="needs strace to see and fail system calls")


class TracedBroker(BrokerProcess):
    """A broker under strace, which ends with the broker's exit code."""

    def __init__(self, data_dir: Path, options: Sequence[str]) -> None:
        super().__init__(data_dir)
        assert STRACE is not None
        self._strace = [STRACE, "-f", *options]

    def command(self) -> list[str]:
        # Some versions of strace let go of the broker when they are killed.
        return [*self._strace, *ends_with_parent(super().command())]

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.ready["pid"], number)


@contextmanager
def producer(address: tuple[str, int]) -> Iterator[BinarySession]:
    with BinarySession(address) as session:
        session.connect()
        session.create_producer(TOPIC)
        yield session


def send(session: BinarySession, sequence_id: int) -> None:
    session.send(
        pb.CommandSend(producer_id=1, sequence_id=sequence_id, num_messages=1),
        message_bytes(plain_metadata(sequence_id), b"<message %d>" % sequence_id),
    )


REFUSED = ("-e", "inject=pwritev2:error=ENOSYS")
"""As a kernel before 4.6: every group takes a write and an fdatasync."""


@needs_strace
@pytest.mark.parametrize("refusals", [(), REFUSED], ids=["one call", "two calls"])
def test_no_receipt_leaves_before_its_sync(tmp_path: Path, refusals: tuple[str, ...]) -> None:
    trace = tmp_path / "trace"
    calls = ("-y", "-xx", "-s", "1000000", "-o", str(trace), "-e", "trace=" + ",".join(TRACED), *refusals)
    with (
        TracedBroker(tmp_path / "data", calls) as broker,
        producer(broker.endpoints.binary_address) as session,
    ):
        sent = received = 0
        while received < MESSAGES:
            while sent < min(MESSAGES, received + 50):
                send(session, sent)
                sent += 1
            assert session.expect(pb.CommandSendReceipt).sequence_id == received
            received += 1
    with trace.open() as lines:
        order = check_order(lines, journal=".journal")
    assert order.messages == set(range(MESSAGES))
    assert order.receipts == MESSAGES
    assert order.syncs >= MESSAGES // 50
    assert order.early == []


def test_an_early_receipt_is_found() -> None:
    receipt = pb.BaseCommand(
        type=pb.BaseCommand.SEND_RECEIPT, send_receipt=pb.CommandSendReceipt(producer_id=1, sequence_id=7)
    ).SerializeToString()
    size = len(receipt)
    frame = (size + 4).to_bytes(4, "big") + size.to_bytes(4, "big") + receipt
    write = f'11 pwritev(5</d/1.journal>, [{{iov_base="{hexed(b"..<message 7>..")}", iov_len=1}}], 1, 0) = 1'
    begun, ended = "11 fdatasync(5</d/1.journal> <unfinished ...>", "11 <... fdatasync resumed>) = 0"
    leave = f'10 sendto(9<socket:[1]>, "{hexed(frame)}", 9, 0, NULL, 0) = 9'
    assert early(write, begun, ended, leave) == []
    assert early(write, begun, leave, ended) == [7]
    assert early(begun, write, ended, leave) == [7]
    assert early(write, begun, ended.replace("= 0", "= -1 EIO"), leave) == [7]
    assert early(write, begun.replace(".journal", ".log"), ended, leave) == [7]
    both = write.replace("pwritev(", "pwritev2(").replace("1, 0) = 1", "1, 0, RWF_DSYNC) = 15")
    assert early(both, leave) == []
    assert early(leave, both) == [7]
    assert early(both.replace("= 15", "= 14"), leave) == [7]
    assert early(both.replace("= 15", "= -1 EIO"), leave) == [7]
    assert early(both.replace("RWF_DSYNC", "0"), leave) == [7]
    assert early(both.replace(".journal", ".log"), leave) == [7]
    assert early(write, both.replace(hexed(b"7"), hexed(b"8")), leave) == [7]


def early(*lines: str) -> list[int]:
    order = check_order(lines, journal=".journal")
    assert order.receipts == 1
    return order.early


def hexed(data: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in data)


@needs_strace
@pytest.mark.parametrize(
    ("call", "first_failure"), [("fdatasync", 24), ("fdatasync", 40), ("pwritev2", 8), ("pwritev2", 24)]
)
def test_a_failed_sync_gives_no_receipt_and_ends_the_broker(
    tmp_path: Path, call: str, first_failure: int
) -> None:
    if call == "pwritev2" and not keeps_dsync(tmp_path):
        pytest.skip("needs a file system that keeps RWF_DSYNC")
    fault = f"inject={call}:error=EIO:when={first_failure}+"
    options = ("-o", os.devnull, "-e", "trace=fdatasync,pwritev2", "-e", fault)
    if call == "fdatasync":
        options += REFUSED
    receipted = []
    with (
        TracedBroker(tmp_path / "data", options) as broker,
        producer(broker.endpoints.binary_address) as session,
    ):
        for sequence_id in range(200):
            send(session, sequence_id)
            try:
                answer = session.receive(5).command
            except (ConnectionEnded, queue.Empty):
                break
            if not isinstance(answer, pb.CommandSendReceipt):
                assert isinstance(answer, pb.CommandSendError)
                assert answer.error == pb.PersistenceError
                break
            receipted.append(answer.sequence_id)
        code = broker.wait()
    assert code not in (0, -signal.SIGKILL)
    log = broker.log_tail()
    assert ("cannot write and sync" if call == "pwritev2" else "cannot sync") in log or "IO error" in log
    assert str(tmp_path) in log, "it says which file"
    assert 0 < len(receipted) < 200
    with BrokerProcess(tmp_path / "data") as again:
        assert set(receipted) <= stored(again.endpoints.service_url)


def keeps_dsync(directory: Path) -> bool:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        return real_file._keeps_dsync(descriptor)
    finally:
        os.close(descriptor)


def stored(service_url: str) -> set[int]:
    client = pulsar.Client(service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
    found = set()
    while reader.has_message_available():
        found.add(int(reader.read_next(5000).data()[len(b"<message ") : -1]))
    client.close()
    return found


# ---- a disk that is full

SPACE = Path(__file__).with_name("full_disk.py")


def has_namespaces() -> bool:
    tried = shutil.which("unshare") and subprocess.run(
        ["unshare", "-rm", "mount", "-t", "tmpfs", "-o", "size=1m", "none", "/mnt"],
        capture_output=True,
        check=False,
    )
    return bool(tried) and tried.returncode == 0


@pytest.mark.skipif(not os.environ.get("GEMINGA_LONG"), reason="long run: set GEMINGA_LONG=1")
@pytest.mark.skipif(not hasattr(Bookie, "read_only"), reason="the bookie has no read-only mode yet")
@pytest.mark.skipif(not has_namespaces(), reason="needs user namespaces to mount a small tmpfs")
def test_a_small_disk_is_filled_and_freed(tmp_path: Path) -> None:
    """In a namespace of its own: see `full_disk.py`."""
    outcome = subprocess.run(
        ["unshare", "-rm", sys.executable, str(SPACE), str(tmp_path)],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert "20 times" in outcome.stdout
