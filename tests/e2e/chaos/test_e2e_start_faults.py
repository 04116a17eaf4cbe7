"""Faults at a start, over starts, and of the broker's wall clock."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from geminga.chaos.rules.places import POINTS
from geminga.cli.arguments.parser import EXIT_OK, EXIT_USAGE
from geminga.cli.standalone import EXIT_DATA_DIRECTORY
from tests.e2e.broker_process import ROOT, BrokerProcess
from tests.e2e.chaos.conftest import Faults
from tests.e2e.waiting import QUIET_MS, eventually, now_ms, receive, receive_available, receive_count

pytestmark = pytest.mark.geminga_only
PAYLOADS = [b"%d" % number for number in range(20)]
HOUR_MS = 3_600_000
AT_A_START = (
    "metadata-opened",
    "index-opened",
    "journal-recovered",
    "start-recorded",
    "ledgers-swept",
    "ready",
)
"""In the order in which a start passes them."""


class Started:
    """A broker that ends by itself, or answers."""

    def __init__(self, data: Path, *arguments: str, rules: str = "") -> None:
        command = [sys.executable, "-m", "geminga", "standalone", "--data-dir", str(data)]
        command += ["--port", "0", "--web-port", "0", *arguments]
        if rules:
            file = data.with_name("rules.toml")
            file.write_text(rules)
            command += ["--fault", str(file)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, text=True
        ) as process:
            assert process.stdout is not None
            self.is_ready = bool(process.stdout.readline())
            if self.is_ready:
                process.terminate()
            _, self.log = process.communicate()
            self.code = process.returncode


def rule(fault: str, *fields: str) -> str:
    return "\n".join(["[[faults]]", f'fault = "{fault}"', *fields, ""])


def stored(data: Path) -> list[bytes]:
    with BrokerProcess(data) as broker:
        client = client_of(broker)
        reader = client.create_reader("t", pulsar.MessageId.earliest)
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(5000).data())
        client.close()
    return found


def client_of(broker: BrokerProcess) -> pulsar.Client:
    return pulsar.Client(broker.endpoints.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory whose journal has messages that nothing else has."""
    data = tmp_path_factory.mktemp("killed") / "data"
    broker = BrokerProcess(data)
    broker.start()
    client = client_of(broker)
    producer = client.create_producer("t", batching_enabled=False)
    for payload in PAYLOADS:
        producer.send(payload)
    client.close()
    broker.kill()
    return data


@pytest.fixture
def data(killed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(killed, tmp_path / "data"))


def test_a_file_with_a_wrong_rule_ends_the_start_before_any_data(tmp_path: Path) -> None:
    wrong = rule("wire/cut") + rule("journal/eio", "count = 0")
    started = Started(tmp_path / "data", "--chaos", rules=wrong)
    assert started.code == EXIT_USAGE
    assert "rules.toml: rule 2 (journal/eio): count: expected" in started.log
    assert not (tmp_path / "data").exists()


def test_rules_need_chaos_and_those_of_a_clock_a_real_one(tmp_path: Path) -> None:
    step = rule("clock/step", 'step = "1h"')
    started = Started(tmp_path / "data", rules=step)
    assert (started.code, "only with --chaos" in started.log) == (EXIT_USAGE, True)
    started = Started(tmp_path / "data", "--chaos", "--clock", "virtual", rules=step)
    assert (started.code, "'geminga clock' moves it" in started.log) == (EXIT_USAGE, True)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (rule("journal/eio", 'operation = "read"'), EXIT_DATA_DIRECTORY),
        (rule("index/eio", 'operation = "open"'), EXIT_DATA_DIRECTORY),
        (rule("metadata/conflict", 'path = "/starts"'), EXIT_DATA_DIRECTORY),
        (rule("index/torn", 'operation = "write"'), -signal.SIGKILL),
    ],
)
def test_recovery_itself_is_hit_and_the_next_one_finds_everything(data: Path, fault: str, code: int) -> None:
    started = Started(data, "--chaos", rules=fault)
    assert (started.code, started.is_ready) == (code, False), started.log
    assert "(injected)" in started.log or code < 0
    assert stored(data) == PAYLOADS


def test_a_start_passes_its_points_in_order_and_a_kept_kill_kills_once(data: Path) -> None:
    """The rules are the same at each start; each kills once, so that each start comes one point further."""
    assert set(AT_A_START) < set(POINTS)
    kills = "".join(
        rule("process/kill", f'name = "{name}"', f'id = "{name}"', "count = 1", "keep = true")
        for name in reversed(AT_A_START)
    )
    for number in range(len(AT_A_START)):
        started = Started(data, "--chaos", rules=kills)
        assert (started.code, started.is_ready) == (-signal.SIGKILL, False)
        kept = json.loads((data / "faults.json").read_text())["rules"]
        hit = [one["rule"]["id"] for one in kept if one.get("hits")]
        assert sorted(hit) == sorted(AT_A_START[: number + 1])
    assert Started(data, "--chaos", rules=kills).code == EXIT_OK
    # A start that does not name them forgets them.
    assert Started(data, "--chaos").code == EXIT_OK
    assert not (data / "faults.json").exists()
    assert stored(data) == PAYLOADS


def test_a_kept_rule_goes_on_after_a_kill_with_what_is_left_of_it(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", arguments=["--chaos"])
    broker.start()
    faults = Faults(broker)
    faults.set("process/kill", name="topic-recovered", count=2, keep=True, id="kill")
    faults.set("wire/latency", latencyMs=1, durationMs=HOUR_MS, keep=True, id="slow")
    faults.set("wire/latency", latencyMs=1, id="ends")
    faults.set("wire/latency", latencyMs=1, keep=True, id="cleared")
    assert faults.web.request("DELETE", "/geminga/faults/rules/cleared").status == 200
    for hits in (1, 2):
        with contextlib.suppress(OSError, http.client.HTTPException):
            faults.web.request("PUT", f"/admin/v2/persistent/public/default/t{hits}")
        assert broker.wait() == -signal.SIGKILL
        broker.start()
        states = {state["rule"]["id"]: state for state in faults.web.get("/geminga/faults").json()}
        assert set(states) == ({"kill", "slow"} if hits == 1 else {"slow"})
        assert 0 < states["slow"]["leftMs"] < HOUR_MS
    assert states["slow"]["rule"]["keep"]
    client = client_of(broker)
    client.create_producer("t").send(b"1")
    client.close()
    broker.stop()
    # Without --chaos none is in force, and a line says so.
    started = Started(tmp_path / "data")
    assert (started.code, started.log.count("none is in force without --chaos")) == (EXIT_OK, 1)
    (tmp_path / "data/faults.json").write_text("{")
    started = Started(tmp_path / "data", "--chaos")
    assert (started.code, "it is moved to" in started.log) == (EXIT_OK, True)
    assert (tmp_path / "data/faults.json.damaged").read_text() == "{"
    assert Started(tmp_path / "data", "--wipe-data").code == EXIT_OK


class Clocked:
    """A broker whose wall clock is wrong, and one topic of it."""

    def __init__(self, faults: Faults, topic: str) -> None:
        self.faults = faults
        self.client = client_of(faults.broker)
        self.producer = self.client.create_producer(topic, batching_enabled=False)
        self.consumer = self.client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)

    def ahead_ms(self) -> int:
        shown = self.faults.web.get("/geminga/clock").json()
        return int(shown["now_ms"] - shown["wall_ms"])

    def delayed(self, payload: bytes, delay_ms: int) -> None:
        self.producer.send(payload, deliver_at=now_ms() + delay_ms)


@pytest.fixture
def clocked(faults: Faults, request: pytest.FixtureRequest) -> Iterator[Clocked]:
    made = Clocked(faults, request.node.name)
    yield made
    made.client.close()


def test_a_step_forward_delivers_what_is_due_then_and_nothing_else(clocked: Clocked) -> None:
    clocked.delayed(b"in 50 minutes", HOUR_MS * 5 // 6)
    clocked.delayed(b"in 70 minutes", HOUR_MS * 7 // 6)
    assert receive_available(clocked.consumer) == []
    asked_s = time.monotonic()
    step = clocked.faults.set("clock/step", stepMs=HOUR_MS)
    assert receive(clocked.consumer).data() == b"in 50 minutes"
    # Less than the five seconds after which a sleeper looks at the clock anyway.
    assert time.monotonic() - asked_s < 4
    assert receive_available(clocked.consumer) == []
    assert abs(clocked.ahead_ms() - HOUR_MS) < 1000
    assert clocked.faults.state(step)["hits"] == 1
    clocked.faults.clear_all()
    assert abs(clocked.ahead_ms()) < 1000
    assert receive_available(clocked.consumer) == []
    clocked.faults.set("clock/step", stepMs=2 * HOUR_MS)
    assert receive(clocked.consumer).data() == b"in 70 minutes"


def test_a_step_back_loses_nothing_and_doubles_nothing(clocked: Clocked) -> None:
    clocked.delayed(b"delayed", 60_000)
    clocked.faults.set("clock/step", stepMs=-HOUR_MS)
    clocked.producer.send(b"prompt")
    clocked.delayed(b"delayed later", 30_000)
    assert receive(clocked.consumer).data() == b"prompt"
    clocked.faults.set("clock/step", stepMs=HOUR_MS - 60_000)
    assert receive_available(clocked.consumer) == []
    clocked.faults.set("clock/step", stepMs=180_000)
    came = [receive(clocked.consumer).data() for _ in range(2)]
    assert sorted(came) == [b"delayed", b"delayed later"]
    topic = clocked.consumer.topic()
    clocked.consumer.close()
    again = clocked.client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    came = [message.data() for message in receive_count(again, 3)]  # none was acknowledged
    assert sorted(came) == [b"delayed", b"delayed later", b"prompt"]
    assert receive_available(again) == []


def test_a_clock_that_stands_still_delivers_once_it_runs_again(clocked: Clocked) -> None:
    clocked.faults.set("clock/drift", ppm=-1_000_000)
    before_ms = clocked.ahead_ms()
    clocked.delayed(b"1", 300)
    clocked.producer.send(b"prompt")
    assert receive(clocked.consumer).data() == b"prompt"
    assert receive_available(clocked.consumer, quiet_ms=500 + QUIET_MS) == []
    assert clocked.ahead_ms() < before_ms - 500
    clocked.faults.clear_all()
    assert receive(clocked.consumer).data() == b"1"


def test_a_clock_of_double_speed_halves_a_delay(clocked: Clocked) -> None:
    clocked.faults.set("clock/drift", ppm=1_000_000)
    clocked.delayed(b"1", 4000)
    sent_s = time.monotonic()
    assert receive(clocked.consumer).data() == b"1"
    assert 1.9 <= time.monotonic() - sent_s < 3.9


def test_a_virtual_clock_has_no_such_rules(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", arguments=["--chaos", "--clock", "virtual"]) as broker:
        assert "'geminga clock' moves it" in Faults(broker).refused(place="clock", kind="step", stepMs=1)
    started = Started(tmp_path / "data", "--chaos", rules=rule("clock/drift", "ppm = 1", "keep = true"))
    assert (started.code, "'geminga clock' moves it" in started.log) == (EXIT_DATA_DIRECTORY, True)
    assert Started(tmp_path / "data", "--chaos").is_ready, "the refused rule is not kept for this start"


def test_a_rule_of_a_clock_by_its_command(faults: Faults) -> None:
    assert "stepMs=-1000" in faults.command("set", "clock/step", "--step=-1s", "--for", "1m", "--keep")
    assert "stepMs: clock/step needs it" in faults.command("set", "clock/step", code=1)
    eventually(lambda: "clock/step" in faults.command("list"))
