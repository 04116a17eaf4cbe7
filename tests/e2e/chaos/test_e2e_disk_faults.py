"""Faults of disks, of the metadata and of the process: what a client sees, what the log says, and the end."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pulsar
import pytest

from geminga.cli.arguments.parser import EXIT_FAILED
from tests.e2e.broker_process import ROOT, BrokerProcess
from tests.e2e.chaos.conftest import Faults
from tests.e2e.waiting import eventually

pytestmark = pytest.mark.geminga_only
Start = Callable[..., Faults]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a broker of the test's own, which may end by itself."""
    started: list[BrokerProcess] = []

    def start_one(**settings: str) -> Faults:
        broker = BrokerProcess(tmp_path / "data", settings=settings, arguments=["--chaos"])
        started.append(broker)
        broker.start()
        return Faults(broker)

    yield start_one
    for broker in started:
        if broker.is_running():
            broker.kill()


def client_of(faults: Faults) -> pulsar.Client:
    return pulsar.Client(
        faults.broker.endpoints.service_url,
        operation_timeout_seconds=2,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )


def published(faults: Faults, payloads: list[bytes]) -> list[bytes]:
    """Publish all; those that got a receipt."""
    client, confirmed = client_of(faults), []
    try:
        producer = client.create_producer("t", send_timeout_millis=800, batching_enabled=False)
        for payload in payloads:
            try:
                producer.send(payload)
            except Exception:
                break
            confirmed.append(payload)
    finally:
        client.close()
    return confirmed


def is_published(faults: Faults) -> bool:
    command = [sys.executable, "-m", "geminga", "produce", "t", "-m", "x", "--url"]
    run = subprocess.run(
        [*command, faults.broker.endpoints.service_url],
        capture_output=True,
        cwd=ROOT,
        timeout=20,
        check=False,
    )
    return run.returncode == 0


def stored(faults: Faults) -> list[bytes]:
    client, found = client_of(faults), []
    reader = client.create_reader("t", pulsar.MessageId.earliest)
    while reader.has_message_available():
        found.append(reader.read_next(5000).data())
    client.close()
    return found


def test_a_slow_journal_delays_receipts_and_then_no_more(start: Start) -> None:
    faults = start()
    client = client_of(faults)
    producer = client.create_producer("t")
    rule = faults.set("journal/slow", operation="sync", latencyMs=200, count=1)
    began_s = time.monotonic()
    producer.send(b"1")
    assert time.monotonic() - began_s >= 0.2
    assert faults.state(rule)["ended"] == "count"
    producer.send(b"2")
    client.close()


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_failed_journal_ends_the_broker_as_a_real_disk_does(start: Start, operation: str) -> None:
    faults = start()
    assert published(faults, [b"before"]) == [b"before"]
    faults.set("journal/eio", operation=operation)
    assert published(faults, [b"lost"]) == []
    assert faults.broker.wait() == EXIT_FAILED
    log = faults.broker.log_tail()
    assert "storage failed, stopping" in log
    assert f".journal: cannot {operation}: Input/output error (injected)" in log
    faults.broker.start()
    # A message whose sync has failed may be there; one that was confirmed has to be.
    assert b"before" in stored(faults)


def test_half_of_a_group_is_cut_off_by_the_next_start(start: Start) -> None:
    faults = start()
    assert published(faults, [b"before"]) == [b"before"]
    faults.set("journal/torn", operation="write")
    assert published(faults, [b"x" * 100_000]) == []
    assert faults.broker.wait() == -signal.SIGKILL
    faults.broker.start()
    assert stored(faults) == [b"before"]


@pytest.mark.parametrize("place", ["journal", "entry-log"])
def test_a_full_disk_makes_the_broker_read_only_until_there_is_space(start: Start, place: str) -> None:
    faults = start(diskCheckInterval="100")
    assert published(faults, [b"before"]) == [b"before"]
    rule = faults.set(f"{place}/enospc")
    log = faults.broker.log_path
    eventually(lambda: "the bookie is read-only, its disk is full" in log.read_text())
    assert faults.state(rule)["hits"] >= 1
    assert not is_published(faults)
    assert stored(faults) == [b"before"]
    faults.clear_all()
    eventually(lambda: "the bookie takes entries again" in log.read_text())
    assert is_published(faults)
    assert faults.broker.stop() == 0


@pytest.mark.parametrize(
    ("kind", "expected"),
    # A full disk is no failure: the journals have what the index has not.
    [("eio", EXIT_FAILED), ("enospc", 0), ("torn", -signal.SIGKILL)],
)
def test_a_failed_index_loses_nothing(start: Start, kind: str, expected: int) -> None:
    faults = start()
    payloads = [b"%d" % number for number in range(20)]
    assert published(faults, payloads) == payloads
    faults.set(f"index/{kind}", operation="write")
    # A stop flushes what is in memory.
    assert faults.broker.stop() == expected
    faults.broker.start()
    assert stored(faults) == payloads


@pytest.mark.parametrize("kind", ["eio", "torn"])
def test_a_failed_entry_log_loses_nothing(start: Start, kind: str) -> None:
    faults = start()
    payloads = [b"%d" % number for number in range(20)]
    assert published(faults, payloads) == payloads
    faults.set(f"entry-log/{kind}", operation="write")
    code = faults.broker.stop()
    assert code == (-signal.SIGKILL if kind == "torn" else EXIT_FAILED)
    faults.broker.start()
    assert stored(faults) == payloads


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_slow_entry_log_and_index_hold_up_a_flush_and_no_receipt(start: Start, operation: str) -> None:
    faults = start()
    for place in ("entry-log", "index"):
        faults.set(f"{place}/slow", operation=operation, latencyMs=100)
    payloads = [b"%d" % number for number in range(20)]
    assert published(faults, payloads) == payloads
    # A stop flushes what is in memory, slowly.
    began_s = time.monotonic()
    assert faults.broker.stop() == 0
    assert time.monotonic() - began_s >= 0.2
    faults.broker.start()
    assert stored(faults) == payloads


def test_a_failing_read_is_told_to_the_reader_and_loses_nothing(start: Start) -> None:
    faults = start()
    payloads = [b"%d" % number for number in range(20)]
    assert published(faults, payloads) == payloads
    assert faults.broker.stop() == 0
    # From now on they are in an entry log and in no cache.
    faults.broker.start()
    rule = faults.set("entry-log/eio", operation="read", count=1)
    with pytest.raises(pulsar.PulsarException):
        stored(faults)
    assert faults.state(rule)["ended"] == "count"
    assert stored(faults) == payloads
    assert faults.broker.stop() == 0


def test_a_slow_read_delays_messages(start: Start) -> None:
    faults = start()
    assert published(faults, [b"1"]) == [b"1"]
    assert faults.broker.stop() == 0
    faults.broker.start()
    rule = faults.set("entry-log/slow", operation="read", latencyMs=200, count=1)
    began_s = time.monotonic()
    assert stored(faults) == [b"1"]
    assert time.monotonic() - began_s >= 0.2
    assert faults.state(rule)["ended"] == "count"


def test_the_metadata_refuses_delays_and_conflicts(start: Start) -> None:
    faults = start()
    web = faults.web
    path = "/admin/v2/namespaces/public"
    faults.set("metadata/refused", path="/namespaces/public", count=1)
    assert web.request("PUT", f"{path}/one").status == 503
    assert web.request("GET", path).json() == ["public/default"]
    # The broker reads a node again that another writer has changed.
    conflict = faults.set("metadata/conflict", path="/namespaces/public", count=1)
    assert web.request("PUT", f"{path}/one").status == 204
    assert faults.state(conflict)["hits"] == 1
    faults.set("metadata/delayed", path="/namespaces/public", count=1, latencyMs=200)
    began_s = time.monotonic()
    assert web.request("PUT", f"{path}/two").status == 204
    assert time.monotonic() - began_s >= 0.2
    assert sorted(web.request("GET", path).json()) == ["public/default", "public/one", "public/two"]
    assert faults.broker.stop() == 0


def test_requests_wait_for_the_end_of_a_topic_that_is_being_unloaded(start: Start) -> None:
    faults = start()
    topic = "/admin/v2/persistent/public/default/t"
    for method, path, expected in [
        ("DELETE", topic, 204),
        ("PUT", f"{topic}/unload", 204),
        ("GET", f"{topic}/stats", 200),
        ("PUT", f"{topic}/subscription/s2", 204),
    ]:
        published(faults, [b"1"])
        rule = faults.set("metadata/delayed", path="/managed-ledgers/public", count=1, latencyMs=300)
        with ThreadPoolExecutor() as threads:
            unload = threads.submit(faults.web.request, "PUT", f"{topic}/unload")
            eventually(lambda rule=rule: faults.state(rule)["hits"] == 1)  # type: ignore[misc]
            assert faults.web.request(method, path).status == expected
            assert unload.result().status == 204


@pytest.mark.parametrize("point", ["journal-written", "journal-synced", "receipt-sent"])
def test_the_broker_is_killed_at_a_point_of_a_publish(start: Start, point: str) -> None:
    faults = start()
    assert published(faults, [b"before"]) == [b"before"]
    faults.set("process/kill", name=point)
    confirmed = published(faults, [b"last"])
    assert faults.broker.wait() == -signal.SIGKILL
    assert confirmed == ([b"last"] if point == "receipt-sent" else [])
    faults.broker.start()
    # Killed, not cut off from power: what was written to the file is there, synced or not.
    assert stored(faults) == [b"before", b"last"]


@pytest.mark.parametrize("point", ["ledger-rolled", "cursor-written", "metadata-written"])
def test_the_broker_is_killed_at_a_point_of_the_metadata(start: Start, point: str) -> None:
    faults = start()
    assert published(faults, [b"before"]) == [b"before"]
    faults.set("process/kill", name=point)
    client = client_of(faults)
    with contextlib.suppress(Exception):
        client.subscribe("other", "s")
    client.close()
    assert faults.broker.wait() == -signal.SIGKILL
    faults.broker.start()
    assert stored(faults) == [b"before"]


@pytest.mark.parametrize("point", ["entry-log-synced", "index-written"])
def test_the_broker_is_killed_at_a_point_of_a_flush(start: Start, point: str) -> None:
    faults = start()
    assert published(faults, [b"before"]) == [b"before"]
    faults.set("process/kill", name=point)
    assert faults.broker.stop() == -signal.SIGKILL
    faults.broker.start()
    assert stored(faults) == [b"before"]


def test_a_pause_stops_the_loop_for_its_time(start: Start) -> None:
    faults = start()
    began_s = time.monotonic()
    rule = faults.set("process/pause", latencyMs=300)
    assert time.monotonic() - began_s >= 0.3
    assert faults.state(rule)["ended"] == "count"
    assert published(faults, [b"after"]) == [b"after"]
    assert faults.broker.stop() == 0
