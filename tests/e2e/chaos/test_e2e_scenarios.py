"""Each shipped scenario, small and fast, by its command; and runs that must fail."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from geminga.cli.arguments.parser import EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE
from geminga.cli.chaos.chaos import EXIT_NOT_SHOWN, EXIT_WRONG
from geminga.cli.chaos.shipped.scenarios import names
from tests.chaos.promises.sizes import size_of
from tests.e2e.broker_process import ROOT, BrokerProcess
from tests.e2e.waiting import eventually

pytestmark = pytest.mark.geminga_only
AT_ONCE = 3
SLACK = ("--slack", "30")
"""How late messages come under the other tests says nothing."""


def run(directory: Path, *arguments: str, codes: tuple[int, ...] = (EXIT_OK,)) -> Any:
    """What a run found. Nothing is left in the working directory, which may be a checkout."""
    temporary = directory / "temporary"
    temporary.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "geminga", "chaos", "run", *arguments, "--json", "--quiet"],
        capture_output=True,
        text=True,
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)},
        check=False,
    )
    assert done.returncode in codes, (done.stdout, done.stderr)
    assert list(directory.glob("*.html")) == []
    found = json.loads(done.stdout.splitlines()[-1])
    assert Path(found["report"]).parent == temporary
    return found


class Shipped(NamedTuple):
    directory: Path
    runs: Mapping[str, Future[Any]]


@pytest.fixture(scope="module")
def shipped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shipped]:
    """A run of each scenario that is asked for, several at once: most of their time they wait."""
    directory = tmp_path_factory.mktemp("shipped")
    asked = [item.name for item in request.session.items if item.path == request.path]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        runs = {}
        for name in names():
            if any(f"[{name}]" in one for one in asked):
                scale, pace = size_of(name)
                arguments = (name, "--scale", scale, "--pace", pace, *SLACK)
                codes = (EXIT_OK, EXIT_NOT_SHOWN)
                runs[name] = threads.submit(run, directory, *arguments, codes=codes)
        yield Shipped(directory, runs)
        threads.shutdown(cancel_futures=True)


@pytest.mark.parametrize("name", names())
def test_a_shipped_scenario_passes(shipped: Shipped, name: str) -> None:
    found = shipped.runs[name].result()
    # Where other tests have the machine a fault may miss its moment; that shows nothing, and accuses nobody.
    assert found["verdict"] in {"passed", "not shown"}
    assert set(found["reasons"]) <= {"not shown"}
    assert found["confirmed"] == found["sent"] > 20
    assert found["deliveries"] >= found["sent"]
    page = Path(found["report"]).read_text()
    assert "<svg" in page
    assert f"geminga chaos run {name} --seed " in page


def test_a_loss_that_the_broker_does_not_know_of_is_found(tmp_path: Path) -> None:
    """A TTL takes messages of which the broker believes that all is well."""
    scenario = tmp_path / "my own & näive.toml"
    scenario.write_text(
        """
        clock = "virtual"
        ttl = "10s"
        drain = "1s"
        broker = { messageExpiryCheckIntervalInMinutes = 1 }
        load = { messages = 60, delayed = 0.5, delay = ["80s", "90s"] }
        [[consumers]]
        subscription = "s"
        """
    )
    found = run(tmp_path, scenario.name, codes=(EXIT_WRONG,))
    assert found["verdict"] == "wrong"
    lost = found["counts"]["lost"]["count"]
    assert 15 < lost < 45
    assert found["deliveries"] + lost == found["sent"] == 60
    assert any(text.startswith("lost: ") for text in found["reasons"]["wrong"])


def test_messages_that_come_before_their_time_are_found(tmp_path: Path) -> None:
    """The broker's tick is made so long that it hands messages out early, as it then may."""
    scenario = tmp_path / "ticking.toml"
    scenario.write_text(
        """
        [broker]
        isDelayedDeliveryDeliverAtTimeStrict = false
        delayedDeliveryTickTimeMillis = 800
        delayedDeliveryTrackerFactoryClassName = \
            "org.apache.pulsar.broker.delayed.InMemoryDelayedDeliveryTrackerFactory"
        [load]
        messages = 50
        delayed = 1.0
        delay = ["1200ms", "1500ms"]
        [[consumers]]
        subscription = "s"
        """
    )
    found = run(tmp_path, "ticking.toml", codes=(EXIT_WRONG,))
    assert found["counts"]["early"]["count"] > 40
    assert 0 < found["early_by_ms"] <= 800


def test_a_fault_ends_with_the_run(tmp_path: Path) -> None:
    """Few messages: the first write of an entry log is at the broker's last stop."""
    (tmp_path / "disk.toml").write_text(
        """
        load = { messages = 50 }
        [[consumers]]
        subscription = "s"
        [[steps]]
        do = "fault"
        fault = "entry-log/eio"
        operation = "write"
        [expect]
        broker_ends = true
        """
    )
    found = run(tmp_path, "disk.toml", codes=(EXIT_OK, EXIT_NOT_SHOWN))
    assert not any("broken off" in text for texts in found["reasons"].values() for text in texts)


def test_what_an_operator_does_is_told_and_judged(tmp_path: Path) -> None:
    # The copy comes when all ledgers are there: one is made soon after the first acknowledgement, and a copy
    # of that moment may have it without its metadata, so that no broker starts on it.
    (tmp_path / "mistakes.toml").write_text(
        """
        load = { messages = 300, rate = 150 }
        [[consumers]]
        subscription = "s"
        [[steps]]
        do = "copy"
        at = "800ms"
        [[steps]]
        do = "fault"
        at = "900ms"
        fault = "wire/latency"
        latency = "1ms"
        [[steps]]
        do = "restore"
        at = "1300ms"
        stopped = true
        [[steps]]
        do = "remove"
        at = "1400ms"
        files = "journal"
        [[steps]]
        do = "remove"
        at = "1500ms"
        files = "entry-log"
        """
    )
    # Whether an entry log was open when it was removed is a matter of time.
    found = run(tmp_path, "mistakes.toml", *SLACK, codes=(EXIT_OK, EXIT_NOT_SHOWN))
    assert set(found["reasons"]) <= {"not shown"}
    assert found["taken"] > 20
    page = Path(found["report"]).read_text()
    assert "ended by the restart: fault wire/latency" in page
    for directory in ("journal", "entry-logs"):
        assert f"the broker said: storage failed, stopping: bookie/{directory}/" in page


def test_a_history_is_judged_again_without_a_broker(tmp_path: Path) -> None:
    """Two runs, each with its own history; a lie in one of them is found by reading it."""
    arguments = ("pulsar-14721", "--scale", "0.05", "--pace", "8", "--repeat", "2", *SLACK)
    files = ("--history", "history.jsonl", "--junit", "verdicts.xml")
    run(tmp_path, *arguments, *files, codes=(EXIT_OK, EXIT_NOT_SHOWN))
    assert (tmp_path / "verdicts.xml").read_text().count("<testcase ") == 2
    histories = sorted(tmp_path.glob("history-*.jsonl"))
    assert [file.name for file in histories] == ["history-14721.jsonl", "history-14722.jsonl"]
    lines = histories[0].read_text().splitlines(keepends=True)
    lines.remove(next(line for line in lines if '"is":"received"' in line))
    histories[0].write_text("".join(lines))
    again = [
        subprocess.run(
            [sys.executable, "-m", "geminga", "chaos", "check", str(file), "--json"],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=False,
        )
        for file in histories
    ]
    assert [one.returncode for one in again] in ([EXIT_WRONG, EXIT_OK], [EXIT_WRONG, EXIT_NOT_SHOWN])
    assert json.loads(again[0].stdout)["counts"]["lost"]["count"] == 1


def test_against_a_broker_that_runs_already(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        found = run(
            tmp_path,
            "restarts",
            *("--scale", "0.05", "--pace", "6", "--against", broker.endpoints.web_url),
            codes=(EXIT_OK, EXIT_NOT_SHOWN),
        )
        assert "wrong" not in found["reasons"]
        assert broker.is_running()
        page = Path(found["report"]).read_text()
        assert page.count("left out, this broker does not have it") == 3 + 3


def test_what_cannot_be_run_is_said(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "geminga", "chaos", "run", "bucket-los"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == EXIT_USAGE
    assert done.stderr.startswith("geminga chaos run: bucket-los: No such file")
    assert list(tmp_path.iterdir()) == []
    away = tmp_path / "nowhere" / "report.html"
    done = subprocess.run(
        [sys.executable, "-m", "geminga", "chaos", "run", "pause", "--out", str(away)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 1
    assert "cannot be written to: name another file" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_stops_the_broker_too_and_all_files_are_written(
    number: signal.Signals, tmp_path: Path
) -> None:
    data_dir = tmp_path / "data"
    report, history, verdicts = tmp_path / "o.html", tmp_path / "o.jsonl", tmp_path / "o.xml"
    command = [sys.executable, "-m", "geminga", "chaos", "run", "bucket-loss", "--data-dir", str(data_dir)]
    command += ["--out", str(report), "--history", str(history), "--junit", str(verdicts)]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as run_process:
        # An event: the broker has a bucket, so the run is in its middle.
        events = data_dir / "events" / "events.jsonl"
        eventually(lambda: events.exists() and "bucket-sealed" in events.read_text())
        run_process.send_signal(number)
        said, errors = run_process.communicate(timeout=60)
    assert run_process.returncode == EXIT_INTERRUPTED
    assert "Traceback" not in errors
    assert said.startswith("bucket-loss: not shown\n")
    assert "the run was broken off: by Ctrl-C or a signal" in said
    assert "<svg" in report.read_text()
    assert '"is":"end"' in history.read_text().splitlines()[-1]
    assert 'errors="1"' in verdicts.read_text()
    # Free again: the broker that held it has ended.
    with BrokerProcess(data_dir, arguments=["--clock", "virtual"]):
        pass
