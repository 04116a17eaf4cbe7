"""The stream of events of a running broker: what happens to the index, to rules, to the clock, in order."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pulsar
import pytest
from pulsar import ConsumerType

from tests.e2e.admin_http import Admin
from tests.e2e.broker_process import ROOT, BrokerProcess
from tests.e2e.delays.test_e2e_delayed_index import SETTINGS, publish
from tests.e2e.waiting import eventually, now_ms, receive_count

pytestmark = pytest.mark.geminga_only
TOPIC = "persistent://public/default/told"
COUNT = 150
ARGUMENTS = ["--chaos", "--clock", "virtual"]


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def broker(data_dir: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(data_dir, settings=SETTINGS, arguments=ARGUMENTS) as process:
        yield process


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[pulsar.Client]:
    made = pulsar.Client(broker.endpoints.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield made
    made.close()


def events(broker: BrokerProcess, query: str = "") -> list[Any]:
    answer = Admin(broker.endpoints.web_url).get(f"/geminga/events?{query}")
    assert answer.status == 200, answer.text
    found: list[Any] = answer.json()
    return found


def kinds(broker: BrokerProcess, query: str = "") -> list[str]:
    return [event["kind"] for event in events(broker, query)]


def command(broker: BrokerProcess, *arguments: str, code: int = 0) -> str:
    run = subprocess.run(
        [sys.executable, "-m", "geminga", "events", *arguments, "--url", broker.endpoints.web_url],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert run.returncode == code, run
    return run.stdout + run.stderr


def test_a_lost_bucket_from_the_loss_to_the_last_message(
    broker: BrokerProcess, client: pulsar.Client
) -> None:
    """Sealed, lost, read again, rebuilt, caught up, loaded, delivered, deleted: with the numbers of each."""
    web = Admin(broker.endpoints.web_url)
    consumer = client.subscribe(TOPIC, "s", consumer_type=ConsumerType.Shared)
    producer = client.create_producer(TOPIC, batching_enabled=False)
    due_ms = now_ms() + 3_600_000
    publish(producer, [due_ms + number for number in range(COUNT)])
    sealed = eventually(
        lambda: (
            (found := events(broker, "kind=bucket-sealed"))
            and sum(event["counts"]["messages"] for event in found) >= 100
            and found
        )
    )
    assert {event["topic"] for event in sealed} == {TOPIC}
    mark = events(broker)[-1]["sequence"]
    rule = {"place": "bucket", "kind": "lose", "topic": TOPIC, "subscription": "s", "which": "first"}
    assert web.request("POST", "/geminga/faults", rule).status == 200
    eventually(lambda: "bucket-rebuilt" in kinds(broker, f"since={mark}"))
    eventually(lambda: "caught-up" in kinds(broker, f"since={mark}"))
    told = events(broker, f"since={mark}")
    assert [event["kind"] for event in told][:2] == ["fault-set", "bucket-lost"]
    assert "fault-hit" in kinds(broker, f"since={mark}")
    lost = told[1]
    assert lost["bucket"] in {event["bucket"] for event in sealed}
    (first,) = [event for event in sealed if event["bucket"] == lost["bucket"]]
    assert lost["counts"]["messages"] == first["counts"]["messages"]
    assert lost["text"].startswith("told: ")
    again = [event for event in told if event["kind"] == "reading-again"]
    assert again[0]["sequence"] > lost["sequence"]
    (caught_up,) = [event for event in told if event["kind"] == "caught-up"]
    assert caught_up["subscription"] == "s"
    assert caught_up["counts"]["messages"] >= lost["counts"]["messages"]
    (rebuilt,) = [event for event in told if event["kind"] == "bucket-rebuilt"]
    assert rebuilt["counts"]["messages"] == lost["counts"]["messages"]

    assert web.post("/geminga/clock", {"ms": 7_200_000}).status == 200
    messages = receive_count(consumer, COUNT)
    assert sorted(int(message.data()) for message in messages) == list(range(COUNT))
    for message in messages:
        consumer.acknowledge(message)
    eventually(lambda: "bucket-deleted" in kinds(broker, f"since={mark}"))
    told = events(broker, f"since={mark}")
    (moved,) = [event for event in told if event["kind"] == "clock-moved"]
    assert moved["counts"]["to_ms"] - moved["counts"]["from_ms"] == 7_200_000
    loaded = [event for event in told if event["kind"] == "bucket-loaded"]
    assert {event["bucket"] for event in loaded} >= {rebuilt["bucket"]}
    assert all(event["sequence"] < moved["sequence"] for event in loaded)
    assert [event["sequence"] for event in told] == list(range(mark + 1, told[-1]["sequence"] + 1))
    text = command(broker, "--kind", "bucket-lost", "--topic", TOPIC)
    assert text.count("\n") == 1
    assert f"bucket {lost['bucket']}" in text


def test_numbers_go_on_over_a_kill(data_dir: Path) -> None:
    with BrokerProcess(data_dir, settings=SETTINGS, arguments=ARGUMENTS) as process:
        web = Admin(process.endpoints.web_url)
        for _ in range(3):
            assert web.post("/geminga/clock", {"ms": 1000}).status == 200
        files = data_dir / "events" / "events.jsonl"
        eventually(lambda: files.exists() and files.read_text().count("clock-moved") == 3)
        process.kill()
    with BrokerProcess(data_dir, settings=SETTINGS, arguments=ARGUMENTS) as process:
        found = events(process)
        assert [(event["sequence"], event["kind"]) for event in found] == [
            (1, "started"),
            (2, "clock-moved"),
            (3, "clock-moved"),
            (4, "clock-moved"),
            (1_000_001, "started"),
        ]
        assert found[4]["time_ms"] >= found[3]["time_ms"]


class Stream:
    """A reader of server-sent events."""

    def __init__(self, broker: BrokerProcess, query: str = "", **headers: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(broker.endpoints.web_url).netloc, timeout=30)
        self._connection.request(
            "GET", f"/geminga/events?{query}", headers={"Accept": "text/event-stream", **headers}
        )
        self._answer = self._connection.getresponse()
        assert self._answer.status == 200
        assert self._answer.headers["Content-Type"] == "text/event-stream"

    def next(self) -> dict[str, str]:
        """The fields of the next event."""
        fields: dict[str, str] = {}
        while line := self._answer.readline().decode().rstrip("\n") or not fields:
            if isinstance(line, str) and line[0] != ":":
                name, _, value = line.partition(": ")
                fields[name] = value
        return fields

    def close(self) -> None:
        self._connection.close()


def test_a_stream_goes_on_where_it_broke(broker: BrokerProcess) -> None:
    web = Admin(broker.endpoints.web_url)
    stream = Stream(broker)
    web.post("/geminga/clock", {"ms": 1000})
    moved = stream.next()
    assert moved["event"] == "clock-moved"
    assert json.loads(moved["data"])["counts"]["stops"] == 1
    stream.close()
    web.post("/geminga/clock", {"ms": 2000})
    web.post("/geminga/clock", {"ms": 3000})
    again = Stream(broker, **{"Last-Event-ID": moved["id"]})
    lengths = []
    for _ in range(2):
        counts = json.loads(again.next()["data"])["counts"]
        lengths.append(counts["to_ms"] - counts["from_ms"])
    assert lengths == [2000, 3000]
    again.close()
    chosen = Stream(broker, "since=0&kind=started")
    assert chosen.next()["id"] == "1"
    chosen.close()


def test_bad_questions_are_told_what_to_ask(broker: BrokerProcess) -> None:
    web = Admin(broker.endpoints.web_url)
    for query, reason in (
        ("since=-1", "since: expected a number from 0"),
        ("since=x", "since: expected a number from 0"),
        ("limit=99999999", "limit: expected a number from 0 to 4096"),
        ("kind=eaten", "there are started"),
        ("topic=a/b/c/d/e/f", "topic"),
    ):
        answer = web.get(f"/geminga/events?{query}")
        assert answer.status in {400, 412}, (query, answer.text)
        assert reason in answer.json()["reason"].lower(), answer.text
    assert "there is no 'eaten'" in command(broker, "--kind", "eaten", code=1)
    assert "bucket-lost" in command(broker, "--kinds")


def test_a_follower_at_the_command_line(broker: BrokerProcess) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "geminga", "events", "-f", "--json", "--url", broker.endpoints.web_url],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as follower:
        assert follower.stdout is not None
        assert json.loads(follower.stdout.readline())["kind"] == "started"
        Admin(broker.endpoints.web_url).post("/geminga/clock", {"ms": 1000})
        assert json.loads(follower.stdout.readline())["kind"] == "clock-moved"
        follower.send_signal(signal.SIGINT)
        follower.communicate()
