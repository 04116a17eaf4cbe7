"""`geminga delayed` against a broker: what waits, and how that is changed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pulsar
import pytest

from geminga.config.config import IN_MEMORY_TRACKER
from tests.e2e.admin_http import Admin
from tests.e2e.broker_process import ROOT, BrokerProcess
from tests.e2e.waiting import eventually

TOPIC = "persistent://public/default/orders"
SETTINGS = {
    "delayedDeliveryTrackerFactoryClassName": "org.apache.pulsar.broker.delayed."
    "BucketDelayedDeliveryTrackerFactory",
    "delayedDeliveryMinIndexCountPerBucket": "10",
    "managedLedgerMaxEntriesPerLedger": "10",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
}
AFTER_9999_MS = 253_402_300_800_000


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("delayed") / "data", settings=SETTINGS) as process:
        yield process


def call(web_url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    action, *rest = arguments
    command = [sys.executable, "-m", "geminga", "delayed", action, TOPIC, "-s", "billing", *rest]
    if "--url" not in arguments:
        command += ["--url", web_url]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


def run(process: BrokerProcess, *arguments: str, fails: bool = False) -> str:
    done = call(process.endpoints.web_url, *arguments)
    assert (done.returncode != 0) is fails, done
    return done.stderr if fails else done.stdout


def test_seeing_and_changing_what_waits(process: BrokerProcess, tmp_path: Path) -> None:
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(tmp_path / "client.log"))
    client = pulsar.Client(process.endpoints.service_url, logger=logger)
    consumer = client.subscribe(TOPIC, "billing", pulsar.ConsumerType.Shared)
    producer = client.create_producer(TOPIC)
    ids = [producer.send(b"%d" % n, deliver_after=timedelta(hours=1 + n)) for n in range(30)]
    producer.send(b"plain")
    plain = consumer.receive(5000)
    assert plain.data() == b"plain"
    places = [f"{i.ledger_id()}:{i.entry_id()}" for i in ids]

    def all_indexed() -> dict[str, Any] | None:
        found: dict[str, Any] = json.loads(run(process, "summary", "--json"))
        return found if found["messages"] == 30 else None

    # What is published now is read first: the backlog from before the index was opened is indexed beside it.
    summary = eventually(all_indexed)
    assert summary["keepsBuckets"]
    shown = run(process, "summary")
    assert "messages that wait  30" in shown
    assert "not acknowledged    31, these included" in shown
    assert "not read yet" not in shown
    on_disk = [b for b in json.loads(run(process, "buckets", "--json")) if b["ledgerId"] is not None]
    assert summary["buckets"] == len(on_disk)
    drawn: dict[str, Any] = json.loads(run(process, "histogram", "--width", "1h", "--json"))
    assert sum(row["messages"] for row in drawn["classes"]) == 30
    assert drawn["widthMs"] == 3_600_000
    shown = run(process, "histogram", "--width", "5h")
    assert shown.startswith("each line is 5h\n")
    assert "#" in shown
    assert run(process, "histogram", "--width", "90s").startswith("each line is 1m 30s\n")
    listed = run(process, "list", "--limit", "10")
    assert listed.splitlines()[0].split()[0] == places[0]
    assert f"more: --from {places[10]}" in listed
    assert "no message waits from 999:0 on" in run(process, "list", "--from", "999:0")
    due_text = listed.splitlines()[0].partition(" ")[2].strip()
    why = run(process, "why", places[0])
    assert "waits for another" in why
    assert why.endswith(f" s, until {due_text}\n")
    assert "SEGMENTS" in run(process, "buckets")

    assert run(process, "cancel", places[1], places[2]) == "cancelled: 2\n"
    assert f"{places[1]} is not cancelled: " in run(process, "cancel", places[1], fails=True)
    run(process, "postpone", places[3], "--for", "2d")
    later = run(process, "postpone", places[4], "--until", "2040-01-31T12:00:00+00:00")
    assert later == f"{places[4]} is due 2040-01-31 12:00:00.000Z\n"
    assert run(process, "expedite", places[5]) == f"{places[5]} is due now\n"
    early = consumer.receive(5000)
    assert early.data() == b"5"
    assert json.loads(run(process, "summary", "--json"))["messages"] == 27
    assert "is acknowledged" in run(process, "why", places[1])
    assert "does not wait" in run(process, "expedite", "999:0", fails=True)
    assert "--chaos" in run(process, "lose-bucket", fails=True)

    process.kill()
    process.start()
    again = consumer.receive(10_000)
    assert again.data() in (b"plain", b"5")
    consumer.acknowledge(again)
    both = consumer.receive(10_000)
    assert {again.data(), both.data()} == {b"plain", b"5"}
    message = json.loads(run(process, "list", "--from", places[4], "--limit", "1", "--json"))["messages"][0]
    assert message["dueMs"] == 2_211_624_000_000
    assert "is acknowledged" in run(process, "why", places[1])
    client.close()


def test_what_is_refused(process: BrokerProcess) -> None:
    assert "ledger:entry" in run(process, "cancel", "nonsense", fails=True)
    assert "of type" not in run(process, "why", "1:x", fails=True)
    assert "expected a duration" in run(process, "postpone", "1:1", "--for", "never", fails=True)
    assert "--for" in run(process, "postpone", "1:1", fails=True)
    for place in ("2", "a:b", "1:", "1:2:3"):
        for action in ("why", "expedite", "cancel"):
            assert f"expected a message as ledger:entry, not '{place}'" in run(
                process, action, place, fails=True
            )
        assert f"as ledger:entry, not '{place}'" in run(process, "list", "--from", place, fails=True)
    for width in ("0", "0ms", "0.1ms"):
        assert f"expected at least 1ms, not '{width}'" in run(
            process, "histogram", "--width", width, fails=True
        )
    for negative in (["--width", "-5"], ["--width=-5m"]):
        assert "expected a duration such as" in run(process, "histogram", *negative, fails=True)
    assert "at most 1000" in run(process, "list", "--limit", "1001", fails=True)
    latest = "the latest time that a message can be given is 9999-12-31 23:59:59.999Z"
    assert latest in run(process, "postpone", "1:1", "--for", "1000000000d", fails=True)
    assert latest in run(process, "postpone", "1:1", "--until", str(AFTER_9999_MS), fails=True)
    assert latest not in run(process, "postpone", "1:1", "--until", str(AFTER_9999_MS - 1), fails=True)


def test_what_is_due_when_calendars_end_has_a_text(process: BrokerProcess, tmp_path: Path) -> None:
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(tmp_path / "client.log"))
    client = pulsar.Client(process.endpoints.service_url, logger=logger)
    topic = f"{TOPIC}-late"
    client.subscribe(topic, "billing", pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic)
    for due_ms in (AFTER_9999_MS - 1, AFTER_9999_MS):
        producer.send(b"late", deliver_at=due_ms)
    command = [sys.executable, "-m", "geminga", "delayed", "list", topic, "-s", "billing"]
    command += ["--url", process.endpoints.web_url]

    def shown() -> list[str]:
        listed = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
        return [line.partition(" ")[2].strip() for line in listed.stdout.splitlines()]

    eventually(lambda: shown() == ["9999-12-31 23:59:59.999Z", "after the year 9999"])
    client.close()


@pytest.fixture
def chaos(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", settings=SETTINGS, arguments=["--chaos"]) as process:
        yield process


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Its delayed messages have no buckets."""
    settings = {"delayedDeliveryTrackerFactoryClassName": IN_MEMORY_TRACKER}
    with BrokerProcess(tmp_path / "data", settings=settings) as process:
        yield process


def test_it_is_said_how_a_bucket_was_damaged(chaos: BrokerProcess, tmp_path: Path) -> None:
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(tmp_path / "client.log"))
    client = pulsar.Client(chaos.endpoints.service_url, logger=logger)
    client.subscribe(TOPIC, "billing", pulsar.ConsumerType.Shared)
    assert "there are no buckets on disk" in run(chaos, "lose-bucket", fails=True)
    producer = client.create_producer(TOPIC)
    for n in range(40):
        producer.send(b"%d" % n, deliver_after=timedelta(hours=1))

    def on_disk() -> list[int]:
        found = json.loads(run(chaos, "buckets", "--json"))
        return [bucket["ledgerId"] for bucket in found if bucket["ledgerId"] is not None]

    ledgers = eventually(lambda: (found := on_disk())[2:] and found)
    assert "there is no such bucket" in run(chaos, "lose-bucket", "--ledger", "123456", fails=True)

    def damage(how: str, ledger_id: int, *flags: str) -> str:
        return run(chaos, f"{how}-bucket", "--ledger", str(ledger_id), *flags).strip()

    told = "; the broker knows, and reads its messages again: 'geminga delayed buckets' shows it come back"
    assert damage("lose", ledgers[0]) == f"deleted ledger {ledgers[0]}, which held a bucket{told}"
    assert f"the bucket in ledger {ledgers[0]} is lost already" in run(
        chaos, "lose-bucket", "--ledger", str(ledgers[0]), fails=True
    )
    cut = re.fullmatch(
        r"cut a bucket short: what was left of it is in ledger (\d+)" + re.escape(told),
        damage("truncate", ledgers[1]),
    )
    flipped = re.fullmatch(
        r"flipped a bit of a bucket: it is in ledger (\d+); the broker does not know yet: "
        r"'geminga delayed verify' has it look",
        damage("corrupt", ledgers[2], "--quietly"),
    )
    assert cut is not None
    assert flipped is not None
    assert not {ledgers[0], int(cut[1])} & set(on_disk()), "they are noticed at once"
    assert int(flipped[1]) in on_disk()

    def verify(*arguments: str) -> tuple[int, list[str]]:
        command = [sys.executable, "-m", "geminga", "delayed", "verify", *arguments]
        done = subprocess.run(
            [*command, "--url", chaos.endpoints.web_url], capture_output=True, text=True, cwd=ROOT
        )
        return done.returncode, (done.stdout or done.stderr).splitlines()

    assert verify("nothing-there") == (
        1,
        ["geminga delayed verify: Topic persistent://public/default/nothing-there does not exist"],
    )
    assert verify(TOPIC, "-s", "nobody")[0] == 1
    code, lines = verify(TOPIC, "-s", "billing")
    (damaged,) = [line for line in lines if line.startswith("damaged")]
    assert code == 1
    assert f"in ledger {flipped[1]}: segment 0: " in damaged
    assert damaged.endswith("; its messages are read again from the topic")
    assert lines[-1] == f"  geminga delayed buckets {TOPIC} -s billing"
    assert re.fullmatch(r"\d+ ok, 1 damaged; to see them rebuilt:", lines[-2])
    assert int(flipped[1]) not in on_disk()
    code, lines = eventually(lambda: (found := verify())[0] == 0 and len(found[1]) > 3 and found)
    assert all(line.startswith(f"ok          {TOPIC}") for line in lines[:-1])
    assert re.fullmatch(r"\d+ ok; messages of buckets that were lost before are counted by .*", lines[-1])

    chaos.kill()
    chaos.start()
    client.close()
    assert verify()[1] == lines, "the topic need not be loaded"
    eventually(on_disk)
    lost = run(chaos, "lose-bucket")
    assert lost.endswith("; the broker knows, and reads its messages again when a consumer connects\n")


@contextmanager
def answering(answer: object) -> Iterator[str]:
    """The address of a broker that answers all requests so."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        log_message: Callable[..., None] = lambda *_: None

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_what_could_not_be_cancelled_is_told_with_the_reason() -> None:
    refused = [{"message": "2:13", "why": "it was sent to \x1b[1mx"}, {"message": "9:0", "why": "no such"}]
    with answering({"cancelled": 1, "notCancelled": refused}) as url:
        done = call(url, "cancel", "2:12", "2:13", "9:0")
        as_json = call(url, "cancel", "2:12", "2:13", "9:0", "--json")
    assert done.returncode == as_json.returncode == 1
    assert done.stdout == "cancelled: 1\n"
    assert done.stderr.splitlines() == [
        "geminga delayed cancel: 2:13 is not cancelled: it was sent to  [1mx",
        "geminga delayed cancel: 9:0 is not cancelled: no such",
    ]
    assert json.loads(as_json.stdout)["notCancelled"] == refused
    for nothing in ({"cancelled": 2}, {"cancelled": 2, "notCancelled": []}):
        with answering(nothing) as url:
            done = call(url, "cancel", "2:12", "2:13")
        assert (done.returncode, done.stdout, done.stderr) == (0, "cancelled: 2\n", "")


def test_what_was_held_back_is_counted_again_without_a_consumer(
    memory: BrokerProcess, tmp_path: Path
) -> None:
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(tmp_path / "client.log"))
    client = pulsar.Client(memory.endpoints.service_url, logger=logger)
    client.subscribe(TOPIC, "billing", pulsar.ConsumerType.Shared)
    client.subscribe(TOPIC, "at once")
    producer = client.create_producer(TOPIC)
    producer.send(b"later", deliver_after=timedelta(hours=1))
    assert "get every message at once" in run(memory, "summary", "-s", "at once")
    assert "messages that wait  1\n" in run(memory, "summary")
    assert "in memory, without buckets" in run(memory, "buckets")
    client.close()
    memory.kill()
    memory.start()
    # The start reads it for the index alone, as the topic's record says that something was held back.
    eventually(lambda: "messages that wait  1\n" in run(memory, "summary"))


def test_what_is_published_before_a_consumer_comes_is_not_said_to_be_nothing(memory: BrokerProcess) -> None:
    """As a newcomer meets it: a delayed message, and then a look at the histogram."""
    produce = [sys.executable, "-m", "geminga", "produce", TOPIC, "-m", "later", "--delay", "1h"]
    url = memory.endpoints.service_url
    path = "/admin/v2/persistent/public/default/orders"
    assert Admin(memory.endpoints.web_url).put(path).status == 204
    assert Admin(memory.endpoints.web_url).put(f"{path}/subscription/billing").status == 204
    assert run(memory, "histogram") == run(memory, "list") == "no message waits\n"
    subprocess.run([*produce, "--url", url], check=True, cwd=ROOT, capture_output=True)
    why = "no consumer is connected; entries are read for the first one that connects"
    expected = f"no message is known to wait; entries not read yet: 1\n  1: {why}\n"
    assert run(memory, "histogram") == run(memory, "list") == expected
    for action in ("summary", "histogram", "list"):
        [reason] = json.loads(run(memory, action, "--json"))["notRead"]
        assert (reason["why"], reason["entries"], reason["text"]) == ("no-consumer", 1, why)


def test_where_nothing_listens_that_is_said(process: BrokerProcess) -> None:
    shown = run(process, "summary", "--url", "http://127.0.0.1:1", fails=True)
    assert "nothing listens there" in shown
    assert "GEMINGA_WEB_URL" in shown
