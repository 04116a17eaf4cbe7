"""Buckets made in bulk, served by a broker in a process of its own to the official client: exactly, whether
they came to it stopped or running, and whether one of them was damaged meanwhile.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pulsar
import pytest
import trio

from geminga.bookie.offline.inspection import LogRecord, walk_records
from geminga.cli.main import main
from geminga.cli.pipeline.stopped_topic import opened_topic
from geminga.clock import RealClock
from geminga.config.config import IN_MEMORY_TRACKER
from geminga.pipeline.buckets.buckets import text_of
from geminga.pipeline.buckets.store import named_buckets
from geminga.storage.disk import RealDisk
from geminga.tracker.buckets.bucket_store import BucketOwner, CursorOwner, TopicOwner
from geminga.tracker.format.stored_bucket import KeyRange
from tests.e2e.admin_http import Admin, topic_path
from tests.e2e.broker_process import BrokerProcess
from tests.e2e.waiting import eventually
from tests.pipeline.buckets.stored_backlog import SUBSCRIPTION, TOPIC, write_backlog
from tests.pipeline.conftest import Call, Topics

CLOCK = RealClock()
MESSAGES = 100_000
SAMPLE_STEP = 500
DAY_MS = 86_400_000
AHEAD_MS = 9000
SETTINGS = {
    "delayedDeliveryTrackerFactoryClassName": (
        "org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory"
    ),
    "isDelayedDeliveryDeliverAtTimeStrict": "true",
    "brokerDeleteInactiveTopicsEnabled": "false",
}


def due_ms(start_ms: int, numbers: np.ndarray) -> np.ndarray:
    """Every five-hundredth is due soon, the others in days."""
    later = start_ms + 3 * DAY_MS + numbers * 7919 % DAY_MS
    return np.where(numbers % SAMPLE_STEP == 7, start_ms + AHEAD_MS + numbers % 1500, later)


class Stored:
    """A data directory with the backlog, and the broker that runs on it from time to time."""

    def __init__(
        self,
        directory: Path,
        *,
        shared: bool,
        messages: int = MESSAGES,
        ledger_entries: int = 50_000,
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.shared = shared
        self.start_ms = CLOCK.now_ms()
        due = functools.partial(due_ms, self.start_ms)
        write_backlog(directory, messages, due, self.start_ms, ledger_entries)
        numbers = np.arange(7, messages, SAMPLE_STEP)
        self.sample = dict(zip(numbers.tolist(), due(numbers).tolist(), strict=True))
        more = {"delayedDeliverySharedIndexEnabled": str(shared).lower(), **settings}
        self.broker = BrokerProcess(directory, settings=SETTINGS | more)

    def rebuild(self, capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, str]:
        capsys.readouterr()
        if self.broker.is_running():
            endpoints = self.broker.endpoints
            where = ["--admin-url", endpoints.web_url, "--service-url", endpoints.service_url]
        else:
            where = ["--data-dir", str(self.broker.data_dir), *(["--shared"] if self.shared else [])]
        topic = ["--topic", TOPIC, "--subscription", SUBSCRIPTION, "--master", "none"]
        code = main(["pipeline", "rebuild", *where, *topic, *flags])
        return code, capsys.readouterr().out

    def buckets(self) -> dict[int, KeyRange]:
        """While the broker is stopped."""

        async def look() -> dict[int, KeyRange]:
            async with opened_topic(str(self.broker.data_dir), TOPIC, SUBSCRIPTION) as found:
                owner: BucketOwner = TopicOwner(found.topic) if self.shared else CursorOwner(found.cursor)
                return named_buckets(owner)

        return trio.run(look)

    def damage(self, ledger_id: int) -> None:
        """Flip a bit in the first entry of this ledger, in its log and in journals that it would be healed
        from.
        """
        for path in sorted(self.broker.data_dir.rglob("*.log"), reverse=True):
            file = RealDisk().open(str(path))
            try:
                records = walk_records(file, 64, file.size())
                ends = [
                    r.end
                    for r in records
                    if isinstance(r, LogRecord) and not r.is_name and r.ledger_id == ledger_id
                ]
            finally:
                file.close()
            if ends:
                data = bytearray(path.read_bytes())
                around = bytes(data[ends[0] - 40 : ends[0]])
                data[ends[0] - 10] ^= 1
                path.write_bytes(data)
                for journal in self.broker.data_dir.rglob("*.journal"):
                    damaged = bytes(data[ends[0] - 40 : ends[0]])
                    journal.write_bytes(journal.read_bytes().replace(around, damaged))
                return
        raise AssertionError("no entry log has it")


@pytest.fixture
def stored(tmp_path: Path, request: pytest.FixtureRequest) -> Stored:
    return Stored(tmp_path / "data", shared=request.param)


def quiet_client(stored: Stored) -> pulsar.Client:
    quiet = pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
    return pulsar.Client(stored.broker.endpoints.service_url, logger=quiet)


def received(stored: Stored) -> dict[int, float]:
    """Numbers and times of what comes, up to a second after the last of the sample is due."""
    client = quiet_client(stored)
    consumer = client.subscribe(TOPIC, SUBSCRIPTION, pulsar.ConsumerType.Shared)
    came: dict[int, float] = {}
    last_ms = max(stored.sample.values())
    while len(came) < len(stored.sample) or CLOCK.now_ms() < last_ms + 1000:
        try:
            message = consumer.receive(1000)
        except pulsar.Timeout:
            assert CLOCK.now_ms() < last_ms + 30_000, f"{len(came)} of {len(stored.sample)} came"
            continue
        number = int.from_bytes(message.data(), "big")
        assert number not in came
        came[number] = CLOCK.now_ms()
        consumer.acknowledge(message)
    client.close()
    return came


def check_sample(stored: Stored) -> None:
    came = received(stored)
    assert came.keys() == stored.sample.keys()
    assert min(at_ms - stored.sample[number] for number, at_ms in came.items()) >= 0


def entries_read(stored: Stored) -> int:
    text: Any = Admin(stored.broker.endpoints.web_url).get("/metrics/").text
    name = "bookkeeper_server_READ_ENTRY_count{"
    (line,) = [one for one in text.splitlines() if one.startswith(name) and 'success="true"' in one]
    return int(float(line.rpartition(" ")[2]))


@pytest.mark.parametrize("stored", [True], indirect=True, ids=["shared"])
def test_a_broker_serves_what_was_built_while_it_was_stopped(
    stored: Stored, capsys: pytest.CaptureFixture[str]
) -> None:
    """And what was damaged and repaired; it reads what it delivers, and nothing else of the backlog."""
    code, out = stored.rebuild(capsys)
    assert (code, out) == (0, "2 buckets made, of 100,000 delayed messages\n")
    hit = max(stored.buckets())
    stored.damage(hit)
    code, out = stored.rebuild(capsys, "--verify")
    assert (code, "2 buckets, 1 of them wrong" in out, "damaged" in out) == (1, True, True)
    code, out = stored.rebuild(capsys, "--repair")
    assert (code, "1 buckets made" in out) == (0, True)
    assert hit not in stored.buckets()
    with stored.broker:
        check_sample(stored)
        assert entries_read(stored) < len(stored.sample) + 100
    assert "is lost" not in stored.broker.log_tail(1000)


@pytest.mark.parametrize("stored", [False], indirect=True, ids=["own"])
def test_a_running_broker_takes_in_what_was_built_from_what_it_serves(
    stored: Stored, capsys: pytest.CaptureFixture[str]
) -> None:
    with stored.broker:
        code, out = stored.rebuild(capsys)
        assert code == 0
        assert out.startswith(
            "2 buckets taken in instead of 0, of 100,000 delayed messages, 100,000 of them new"
        )
        before = entries_read(stored)
        check_sample(stored)
        assert entries_read(stored) - before < len(stored.sample) + 100
        code, out = stored.rebuild(capsys, "--verify")
        assert (code, out.splitlines()[-1]) == (0, "2 buckets, 0 of them wrong")
        code, out = stored.rebuild(capsys)
        assert (code, out.partition(",")[0]) == (0, "2 buckets taken in instead of 2")
        assert "0 of them new to the index; 0 others" in out
        assert stored.broker.stop() == 0
        hit = min(stored.buckets())
        stored.damage(hit)
        assert stored.broker.start()
        code, out = stored.rebuild(capsys, "--repair")
        assert code == 0
        # Unless the broker has found it first: then it reads the messages again by itself.
        assert "damaged" in out or "is lost" in stored.broker.log_tail(1000)
        assert stored.rebuild(capsys, "--verify")[0] == 0


def texts(buckets: dict[int, KeyRange]) -> list[str]:
    return [text_of(covered) for covered in sorted(buckets.values())]


def test_a_large_ledger_becomes_buckets_of_the_usual_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """While the broker is stopped: built, one of them damaged, named and repaired; the others stay."""
    stored = Stored(tmp_path / "data", shared=True, messages=170_000, ledger_entries=85_000)
    assert stored.rebuild(capsys) == (0, "4 buckets made, of 170,000 delayed messages\n")
    before = stored.buckets()
    assert texts(before) == [
        "1000:0-1000:53247",
        "1000:53248-1001:20479",
        "1001:20480-1001:73727",
        "1001:73728-1001:84999",
    ]
    assert stored.rebuild(capsys, "--verify") == (0, "4 buckets, 0 of them wrong\n")
    hit = min(ledger_id for ledger_id, one in before.items() if one.ledgers == (1000, 1001))
    stored.damage(hit)
    code, out = stored.rebuild(capsys, "--verify")
    assert code == 1
    assert out.startswith(f"bucket 1000:53248-1001:20479 in ledger {hit}: damaged, ")
    assert out.endswith("4 buckets, 1 of them wrong\n")
    code, out = stored.rebuild(capsys, "--repair")
    assert (code, "1 buckets made" in out) == (0, True)
    after = stored.buckets()
    assert (before.keys() - after.keys(), texts(after)) == ({hit}, texts(before))
    assert stored.rebuild(capsys, "--verify") == (0, "4 buckets, 0 of them wrong\n")


def test_buckets_that_a_broker_cut_inside_ledgers_are_right_and_rebuilt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The broker reads the backlog itself, and its buckets end inside ledgers."""
    size = {"delayedDeliveryMinIndexCountPerBucket": "15000"}
    stored = Stored(tmp_path / "data", shared=True, messages=70_000, ledger_entries=35_000, settings=size)
    with stored.broker:
        client = quiet_client(stored)
        client.subscribe(TOPIC, SUBSCRIPTION, pulsar.ConsumerType.Shared)
        buckets_there(stored, 4)
        client.close()
        ours = served(stored)
        assert sum(":" in one for one in ours.values()) >= 3, ours
        code, out = stored.rebuild(capsys, "--verify")
        # A topic that has been silent for a while seals what is left, on a slow machine just now.
        counts = {len(ours), len(ours := served(stored))}
        assert (code, out.splitlines()[-1]) in [(0, f"{one} buckets, 0 of them wrong") for one in counts], out
        code, out = stored.rebuild(capsys)
        assert (code, out.partition(" taken in")[0]) == (0, "2 buckets"), out
        # On a slow machine the sample is due by now: the consumer had it, and has given it back.
        told = re.search(r"(\d+) of them new to the index; 0 others are read again", out)
        assert told, out
        assert int(told[1]) <= len(stored.sample)
        assert ours.keys().isdisjoint(served(stored))
        code, out = stored.rebuild(capsys, "--verify")
        assert (code, out.splitlines()[-1]) == (0, "2 buckets, 0 of them wrong"), out
        assert stored.broker.stop() == 0
        before = stored.buckets()
        stored.damage(min(before))
        assert stored.rebuild(capsys, "--repair")[0] == 0
        assert before.keys() - stored.buckets().keys() == {min(before)}
        assert stored.broker.start()
        check_sample(stored)
        assert "is lost" not in stored.broker.log_tail(1000)


def buckets_there(stored: Stored, count: int) -> None:
    """Wait for so many; say how far the broker is if they do not come."""
    try:
        # All messages are read for it, on a machine that may have Spark beside it.
        eventually(lambda: len(served(stored)) >= count, 300.0)
    except AssertionError as error:
        admin = Admin(stored.broker.endpoints.web_url)
        delayed = admin.get(f"/geminga/delayed/{topic_path(TOPIC)}/subscription/{SUBSCRIPTION}").text
        stats = admin.get(f"/admin/v2/{topic_path(TOPIC)}/stats").text
        told = [str(served(stored)), delayed, stats, stored.broker.log_tail(100)]
        raise AssertionError("\n".join(told)) from error


def served(stored: Stored) -> dict[int, str]:
    """The buckets of the running broker: their ranges by their ledgers."""
    path = f"/geminga/delayed/{topic_path(TOPIC)}/subscription/{SUBSCRIPTION}/buckets"
    found = Admin(stored.broker.endpoints.web_url).get(path).json()
    return {one["ledgerId"]: one["range"] for one in found if one["ledgerId"] is not None}


def test_a_partitioned_topic_is_told_from_its_partitions(topic: str, call: Call, tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", settings=SETTINGS) as broker:
        at = broker.endpoints
        Admin(at.web_url).create_partitions(topic, 2)
        path = f"/admin/v2/{topic_path(topic)}/subscription/s"
        assert Admin(at.web_url).put(path, {}).status == 204
        where = ("--admin-url", at.web_url, "--url", at.service_url, "--topic", topic, "--subscription", "s")
        code, _, error = call("rebuild", *where, "--verify", "--master", "none")
    assert (code, f"so name one, such as {topic}-partition-0" in error) == (1, True)


def test_an_index_without_buckets_says_which_setting_makes_them(
    topic: str, call: Call, tmp_path: Path
) -> None:
    settings = {"delayedDeliveryTrackerFactoryClassName": IN_MEMORY_TRACKER}
    with BrokerProcess(tmp_path / "data", settings=settings) as broker:
        at = broker.endpoints
        Topics(at).write(topic, {"value": [b"x"]})
        path = f"/admin/v2/{topic_path(topic)}/subscription/s"
        assert Admin(at.web_url).put(path, {}).status == 204
        where = ("--admin-url", at.web_url, "--url", at.service_url, "--topic", topic, "--subscription", "s")
        code, _, error = call("rebuild", *where, "--verify", "--master", "none")
    assert (code, "delayedDeliveryTrackerFactoryClassName=org.apache.pulsar" in error) == (1, True)
