"""The test kit, used as a project uses it: by pytest, in a folder of its own, with the official client."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pulsar
import pytest

import geminga
from geminga.errors import StorageError
from geminga.testing.connected import AHEAD_MS
from geminga.testing.requests import Refused, ask
from tests.e2e.broker_process import ROOT
from tests.testing.plugin_arguments import plugin_arguments

DAY_MS = 86_400_000
EXAMPLE = Path(__file__).with_name("example_project.py")
FAILING = """
import datetime, pulsar

def test_it_fails(geminga_tenant):
    client = pulsar.Client(geminga_tenant.service_url)
    client.subscribe(geminga_tenant.topic("t"), "app", pulsar.ConsumerType.Shared)
    client.create_producer(geminga_tenant.topic("t")).send(b"", deliver_after=datetime.timedelta(days=9))
    geminga_tenant.advance("1h")
    assert "what I expected" == ""

def test_without_a_broker():
    pass
"""
SHORT = """
import datetime, pulsar, pytest

@pytest.fixture(scope="module")
def client(geminga_broker):
    made = pulsar.Client(geminga_broker.service_url)
    yield made
    made.close()

@pytest.mark.parametrize("number", range({count}))
def test_a_second(geminga_tenant, client, number):
    topic = geminga_tenant.topic("t")
    consumer = client.subscribe(topic, "app", pulsar.ConsumerType.Shared)
    client.create_producer(topic).send(b"%d" % number, deliver_after=datetime.timedelta(seconds=1))
    geminga_tenant.advance("1s")
    assert consumer.receive(10_000).data() == b"%d" % number
    consumer.close()
"""


ABSOLUTE = """
import datetime, time, pulsar, pytest

def machines(tenant): return time.time()
def brokers(tenant): return tenant.now().timestamp()

@pytest.mark.parametrize("turn", [1, 2])
@pytest.mark.parametrize("clock", [machines, brokers])
def test_an_hour(geminga_tenant, clock, turn):
    client = pulsar.Client(geminga_tenant.service_url)
    topic = geminga_tenant.topic("t")
    consumer = client.subscribe(topic, "app", pulsar.ConsumerType.Shared)
    due_ms = round(clock(geminga_tenant) * 1000) + 3_600_000
    client.create_producer(topic).send(b"", deliver_at=due_ms)
    geminga_tenant.advance("59m")
    with pytest.raises(AssertionError, match="1 not due yet"):
        geminga_tenant.assert_delivered("t", "app", timeout_s=0)
    geminga_tenant.advance("2m")
    consumer.acknowledge(consumer.receive(10_000))
    geminga_tenant.advance("40d")
    client.close()
"""
NAIVE = """
import datetime, time, pulsar

DUE = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=9)

def ask(tenant):
    client = pulsar.Client(tenant.service_url)
    client.subscribe(tenant.topic("t"), "app", pulsar.ConsumerType.Shared)
    client.create_producer(tenant.topic("t")).send(b"", deliver_at=round(DUE.timestamp() * 1000))
    client.close()

def test_to_a_moment_of_the_machines_clock(geminga_tenant):
    ask(geminga_tenant)
    geminga_tenant.advance_to(DUE)

def test_a_delay_of_25_years(geminga_tenant):
    client = pulsar.Client(geminga_tenant.service_url)
    client.subscribe(geminga_tenant.topic("t"), "app", pulsar.ConsumerType.Shared)
    producer = client.create_producer(geminga_tenant.topic("t"))
    producer.send(b"", deliver_after=datetime.timedelta(days=9125))
    client.close()
    geminga_tenant.assert_delivered("t", "app", timeout_s=0)

def test_what_is_not_due(geminga_tenant):
    ask(geminga_tenant)
    geminga_tenant.advance("8d")
    geminga_tenant.assert_delivered("t", "app", timeout_s=0)
"""


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    plugins = ["-p", "no:cacheprovider", *plugin_arguments()]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_example_project_passes_in_any_order(tmp_path: Path) -> None:
    shutil.copy(EXAMPLE, tmp_path / "test_example.py")
    (tmp_path / "pytest.ini").write_text("[pytest]\ntrio_mode = true\n")
    done = run_pytest(tmp_path)
    assert done.returncode == 0, done.stdout
    assert "12 passed" in done.stdout


def test_a_failure_shows_what_the_broker_knows(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(FAILING)
    done = run_pytest(tmp_path, "-p", "no:randomly")
    assert "1 failed, 1 passed" in done.stdout
    shown = done.stdout.partition("- geminga -")[2]
    assert "/default/t: 1 messages in" in shown
    assert "app (Shared): backlog 1, delayed " in shown
    assert "clock-moved" in shown, "the events"
    assert "is ready" in shown, "the broker's log"


def test_absolute_times_in_each_order(tmp_path: Path) -> None:
    """An application that counts from the machine's clock, and one that is told the broker's."""
    (tmp_path / "test_it.py").write_text(ABSOLUTE)
    ids = [
        f"test_it.py::test_an_hour[{clock}-{turn}]" for clock in ("machines", "brokers") for turn in (1, 2)
    ]
    for order in (ids, ids[::-1]):
        done = run_pytest(tmp_path, "-p", "no:randomly", *order)
        assert "4 passed" in done.stdout, done.stdout


def test_a_moment_of_the_wrong_clock_is_told(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(NAIVE)
    done = run_pytest(tmp_path)
    assert "3 failed" in done.stdout, done.stdout
    assert "is in the past: the broker's clock shows 20" in done.stdout
    assert "Count from geminga_tenant.now(), not from the machine's clock" in done.stdout
    assert re.search(r"NotDelivered: .*1 not due yet", done.stdout), done.stdout
    told = r"is due 20.*: deliver_at asked for 20.*, by the producer's own clock 8 days"
    assert re.search(told, done.stdout), done.stdout
    told = r"is due 20.*: deliver_at asked for it, as a moment of the broker's clock 18\d\d days.* 9125 days"
    assert re.search(told, done.stdout), done.stdout


def test_nothing_starts_before_a_test_asks_for_it(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(FAILING)
    done = run_pytest(tmp_path, "-k", "without", "--setup-show")
    assert done.returncode == 0, done.stdout
    assert "geminga_broker" not in done.stdout


def test_many_short_tests_on_two_workers(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(SHORT.format(count=20))
    done = run_pytest(tmp_path, "-n", "2")
    assert done.returncode == 0, done.stdout
    assert "20 passed" in done.stdout


def test_a_broker_in_the_programs_own_process(tmp_path: Path) -> None:
    for number in range(2):
        with geminga.running(tmp_path / "kept") as broker:
            client = pulsar.Client(broker.service_url)
            reader = client.create_reader("kept", pulsar.MessageId.earliest)
            assert reader.has_message_available() is (number > 0)
            client.create_producer("kept").send(b"%d" % number)
            client.close()
    with geminga.running() as broker:
        left = broker.data_dir
        with pytest.raises(StorageError, match="already in use"), geminga.running(left):
            pass
    assert not Path(left).exists()


CONNECTED = """
import pulsar

def test_a_day(geminga_tenant):
    client = pulsar.Client(geminga_tenant.service_url)
    producer = client.create_producer(geminga_tenant.topic("t"))
    consumer = client.subscribe(geminga_tenant.topic("t"), "app", pulsar.ConsumerType.Shared)
    producer.send(b"later", deliver_at=round(geminga_tenant.now().timestamp() * 1000) + 86_400_000)
    geminga_tenant.advance("1d")
    consumer.acknowledge(consumer.receive(10_000))
    geminga_tenant.assert_delivered("t", "app")
    client.close()
"""


def test_a_broker_that_runs_already(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "test_it.py").write_text(CONNECTED)
    with geminga.ChildBroker(arguments=["--clock", "virtual", "--chaos"]) as broker:
        monkeypatch.setenv("GEMINGA_SERVICE_URL", broker.service_url)
        monkeypatch.setenv("GEMINGA_WEB_URL", f"{broker.web_url}/")
        began_ms = now_ms(broker)
        for _ in range(2):
            done = run_pytest(tmp_path)
            assert "1 passed" in done.stdout, done.stdout
        assert DAY_MS * 2 <= now_ms(broker) - began_ms - AHEAD_MS < DAY_MS * 3, "put ahead once"
        names = ask(broker.web_url, "GET", "/admin/v2/tenants")
        assert [name for name in names if name.startswith("test-")] == []


def test_a_failure_is_shown_without_faults_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that was started without --chaos; and only half of its addresses."""
    (tmp_path / "test_it.py").write_text(FAILING)
    with geminga.ChildBroker(arguments=["--clock", "virtual"]) as broker:
        monkeypatch.setenv("GEMINGA_SERVICE_URL", broker.service_url)
        half = run_pytest(tmp_path)
        monkeypatch.setenv("GEMINGA_WEB_URL", broker.web_url)
        whole = run_pytest(tmp_path)
    assert "GEMINGA_SERVICE_URL is set: set GEMINGA_WEB_URL as well" in half.stdout
    assert "app (Shared): backlog 1, delayed " in whole.stdout.partition("- geminga -")[2]


def test_a_broker_that_does_not_answer_is_named() -> None:
    with pytest.raises(OSError, match="http://127.0.0.1:1: no broker answers .*--clock virtual --chaos"):
        geminga.connected("pulsar://127.0.0.1:2", "http://127.0.0.1:1/")


def test_a_broker_whose_clock_is_the_machines_is_told(tmp_path: Path) -> None:
    with (
        geminga.running(tmp_path / "data") as broker,
        pytest.raises(Refused, match="start it with '--clock virtual --chaos'"),
    ):
        geminga.connected(broker.service_url, broker.web_url)


def now_ms(broker: geminga.ChildBroker) -> int:
    return int(ask(broker.web_url, "GET", "/geminga/clock")["now_ms"])
