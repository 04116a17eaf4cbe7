"""Durations, times and sizes: each command, file and option reads a text as all others do."""

from __future__ import annotations

import argparse
import ast
import datetime
import importlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from geminga import units
from geminga.cli.arguments.parser import Parser
from geminga.cli.chaos.checking.scenario import InvalidScenario, parse_scenario
from geminga.cli.main import MODULES, UNLISTED
from geminga.cli.seeding.seed_file import SeedError, parse_seed
from geminga.pipeline.buckets.capacity import Plan, WrongPlan, ledger_times_ms
from geminga.pipeline.errors import BadOption
from geminga.pipeline.topics.options import parse_options
from geminga.testing.tenant import Tenant
from geminga.units import MS_MAX, time_ms, time_text

PACKAGE = Path(units.__file__).parent

DURATIONS_MS = {
    "250ms": 250,
    "2s": 2000,
    "30": 30_000,
    "90m": 5_400_000,
    "1h30m": 5_400_000,
    "1h 30m": 5_400_000,
    "1.5 h": 5_400_000,
    "15min": 900_000,
    "2d": 172_800_000,
    "2D": 172_800_000,
    "1w": 604_800_000,
}
NO_DURATIONS = (
    "",
    "soon",
    "3 apples",
    "1d later",
    "5mm",
    "1h-30m",
    "1e3s",
    "h",
    "1.2.3s",
    "\u0663s",
    "9" * 30,
)
TIMES_MS = {
    "0": 0,
    "1767225600000": 1_767_225_600_000,
    "2026-01-01": 1_767_225_600_000,
    "2026-01-01T00:00": 1_767_225_600_000,
    "2026-01-01 00:00:00.000": 1_767_225_600_000,
    "2026-01-01T00:00Z": 1_767_225_600_000,
    "2026-01-01T05:30+05:30": 1_767_225_600_000,
}
NO_TIMES = ("", "noon", "2026-13-01", "1969-12-31T23:59", "2026-01-01T00:00 UTC", "9" * 30)
SIZES = {
    "1": 1,
    "4096": 4096,
    "10k": 10_240,
    "10K": 10_240,
    "1.5M": 1_572_864,
    "16MiB": 16_777_216,
    "1 g": 1 << 30,
}
NO_SIZES = ("", "k", "big", "10Q", "1i", "1e3", "9" * 30)


class Taken(Exception):
    """The flags of a command that would run now."""

    def __init__(self, flags: argparse.Namespace) -> None:
        super().__init__()
        self.flags = flags


class Taking(Parser):
    def parse_strictly(self, arguments: Sequence[str]) -> argparse.Namespace:
        raise Taken(super().parse_strictly(arguments))


def flag_of(line: str, name: str) -> Callable[[str], Any]:
    """Reads a text as the command does in place of the `{}` in its line. Raises ValueError."""

    def read(text: str) -> Any:
        command, *words = [text if word == "{}" else word.replace("{}", text) for word in line.split()]
        try:
            importlib.import_module((MODULES | UNLISTED)[command]).run(Taking, words)
        except Taken as taken:
            return getattr(taken.flags, name)
        except SystemExit as exit:
            raise ValueError(text) from exit
        raise AssertionError(f"{line}: has read no flags")

    return read


def seed_delay(name: str, content: str) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        [topic] = parse_seed(name, content.replace("{}", json.dumps(text)).encode()).topics
        return topic.messages[0].delay_ms

    return read


def scenario_step(line: str, found: Callable[[Any], Any]) -> Callable[[str], Any]:
    start = '[[consumers]]\nsubscription = "s"\n[broker]\n[[steps]]\n'

    def read(text: str) -> Any:
        return found(parse_scenario(start + line.replace("{}", json.dumps(text)), "s").steps[0])

    return read


class Kit(Tenant):
    """Keeps the request in place of sending it."""

    def __init__(self) -> None:
        self.asked: Any = None

    def _ask(self, method: str, path: str, body: Any = None, **_: Any) -> Any:
        self.asked = body
        return {"unacknowledged": []}


def kit(text: str) -> int:
    tenant = Kit()
    tenant.advance(text)
    return int(tenant.asked["ms"])


def trigger_delay(text: str) -> float:
    options = {"topic": "t", "service.url": "pulsar://h", "minRowsPerTrigger": "1", "maxTriggerDelay": text}
    return parse_options(options).trigger_delay_max_s * 1000


def planned_delay(text: str) -> int:
    if not text.strip():
        raise ValueError(text)
    plan = Plan(messages=1, per_ms=1, bits=0, delays=f"choice:{text},{text}")
    return int(ledger_times_ms(plan, 0)[0] - ledger_times_ms(plan._replace(delays="fixed"), 0)[0])


DURATION_READERS: dict[str, tuple[Callable[[str], Any], int]] = {
    line: (flag_of(line, name), unit_ms)
    for line, name, unit_ms in (
        ("clock advance {}", "length", 1),
        ("produce t -m x --delay {}", "delay", 1),
        ("consume t -s s --timeout {}", "timeout", 1),
        ("peek t --timeout {}", "timeout", 1),
        ("top --interval {}", "interval", 1),
        ("perf both --duration {}", "duration", 1),
        ("fault set wire/latency --latency {}", "latencyMs", 1),
        ("fault set wire/cut --for {}", "durationMs", 1),
        ("delayed postpone t 1:1 --for {}", "wait_ms", 1),
        ("delayed histogram t --width {}", "width", 1),
        ("delayed precision t --set {}", "precision_ms", 1),
        ("pipeline replay d --shift {}", "shift", 1),
        ("pipeline audit --late {}", "late", 1),
        ("topicPolicies set-delayed-delivery t --enable --time {}", "time", 1),
        ("topicPolicies set-message-ttl t --ttl {}", "value", 1000),
        ("topics expire-messages t -s s -t {}", "expireTime", 1000),
        ("namespaces set-retention public/default --size 1G --time {}", "time", 60_000),
    )
} | {
    "seed.toml": (seed_delay("s.toml", "[[topics]]\nname = 't'\nmessages = [{text = '', delay = {}}]"), 1),
    "seed.jsonl": (seed_delay("s.jsonl", '{"to": "t", "text": "", "delay": {}}'), 1),
    "scenario, pause": (scenario_step('do = "pause"\nlength = {}', lambda step: step.length), 1),
    "scenario, fault": (
        scenario_step('do = "fault"\nfault = "clock/step"\nstep = {}', lambda step: step.rule["stepMs"]),
        1,
    ),
    "test kit": (kit, 1),
    "maxTriggerDelay": (trigger_delay, 1),
    "pipeline capacity": (planned_delay, 1),
}
TIME_READERS = {
    line: flag_of(line, name)
    for line, name in (
        ("clock to {}", "time"),
        ("produce t -m x --deliver-at {}", "deliver_at"),
        ("produce t -m x --event-time {}", "event_time"),
        ("consume t -s s --end-timestamp {}", "end_timestamp"),
        ("delayed postpone t 1:1 --until {}", "until"),
        ("topics get-message-id t --datetime {}", "datetime"),
    )
} | {
    "startingTime": lambda text: (
        parse_options({"topic": "t", "service.url": "pulsar://h", "startingTime": text}).starting_time_ms
    )
}
SIZE_READERS = {
    line: flag_of(line, name)
    for line, name in (
        ("produce t --size {}", "size"),
        ("perf both --size {}", "size"),
        ("fault set wire/throttle --rate {}", "bytesPerS"),
        ("namespaces set-backlog-quota public/default -p producer_exception --limit {}", "limit"),
        ("topics offload t --size-threshold {}", "size_threshold"),
    )
}
REFUSALS = (ValueError, SeedError, InvalidScenario, WrongPlan, BadOption)


@pytest.mark.parametrize("name", DURATION_READERS)
def test_each_reader_of_durations_has_the_same_grammar(name: str) -> None:
    read, unit_ms = DURATION_READERS[name]
    whole = {text: ms for text, ms in DURATIONS_MS.items() if ms % unit_ms == 0}
    assert {text: read(text) for text in whole} == {text: ms // unit_ms for text, ms in whole.items()}
    for text in NO_DURATIONS:
        with pytest.raises(REFUSALS):
            read(text)


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
@pytest.mark.parametrize("name", TIME_READERS)
def test_each_reader_of_times_means_utc(name: str, zone: str, local_zone: Callable[[str], None]) -> None:
    local_zone(zone)
    read = TIME_READERS[name]
    assert {text: read(text) for text in TIMES_MS} == TIMES_MS
    for text in NO_TIMES:
        with pytest.raises(REFUSALS):
            read(text)


@pytest.mark.parametrize("name", SIZE_READERS)
def test_each_reader_of_sizes_has_the_same_grammar(name: str) -> None:
    read = SIZE_READERS[name]
    assert {text: read(text) for text in SIZES} == SIZES
    for text in NO_SIZES:
        with pytest.raises(REFUSALS):
            read(text)


@pytest.fixture
def local_zone(monkeypatch: pytest.MonkeyPatch) -> Any:
    import time

    def use(zone: str) -> None:
        monkeypatch.setenv("TZ", zone)
        time.tzset()

    yield use
    monkeypatch.undo()
    time.tzset()


def test_numbers_and_timedeltas_of_the_kit_are_lengths_too() -> None:
    assert [units.duration_ms(length) for length in (0, 2, 0.25, datetime.timedelta(minutes=90))] == [
        0,
        2000,
        250,
        5_400_000,
    ]
    for length in (-1, -0.1, float("nan"), float("inf"), datetime.timedelta(days=-1), 1e30):
        with pytest.raises(ValueError, match="expected a duration"):
            units.duration_ms(length)


@pytest.mark.parametrize(
    ("line", "name", "values"),
    [
        (
            "namespaces set-retention public/default --size 1G --time {}",
            "time",
            {"-1": -1, "-1s": -1, "0": 0, "1y": 525_600, "3H": 180, "90s": 1, "60s": 1, "59": 59},
        ),
        (
            "namespaces set-retention public/default --time 1h --size {}",
            "size",
            {"-1": -1, "-1M": -1, "0": 0, "10M": 10, "1t": 1 << 20, "100k": 0},
        ),
        ("topicPolicies set-delayed-delivery t --enable --time {}", "time", {"16ms": 16, "1W": 604_800_000}),
    ],
)
def test_pulsar_admins_own_forms_stay(line: str, name: str, values: dict[str, int]) -> None:
    read = flag_of(line, name)
    assert {text: read(text) for text in values} == values


@pytest.mark.parametrize("text", ["2026-12-24T18:00:00.007Z", "1970-01-01T00:00:00.000Z"])
def test_a_moment_is_shown_as_it_is_read(text: str) -> None:
    assert time_text(time_ms(text)) == text


def test_a_moment_without_a_date_is_shown_as_its_number() -> None:
    assert time_text(MS_MAX) == str(MS_MAX)


def test_each_way_to_show_a_moment_has_a_name_of_its_own() -> None:
    """Pages, delayed messages and Java's instants have formats that `time_ms` does not read."""
    names = ("time_text", "page_time_text", "due_text", "instant_text")
    found = [
        (node.name, path.relative_to(PACKAGE).as_posix())
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name in names
    ]
    assert dict(found) == {
        "time_text": "units.py",
        "page_time_text": "admin/front/markup.py",
        "due_text": "cli/admin/delayed_text.py",
        "instant_text": "admin/statistics/stats_json.py",
    }
    assert len(found) == len(names)


def test_no_other_module_reads_units() -> None:
    """No table of units beside this one, and no other parser of moments; values of columns are data."""
    tables = {}
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        keys = [
            {key.value for key in node.keys if isinstance(key, ast.Constant)}
            for node in ast.walk(tree)
            if isinstance(node, ast.Dict)
        ]
        has_units = any({"m", "h"} <= found or {"k", "m", "g"} <= found for found in keys)
        calls = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        if has_units or calls & {"fromisoformat", "strptime"}:
            tables[path.relative_to(PACKAGE).as_posix()] = has_units
    assert tables == {"units.py": True, "pipeline/values/structured_values.py": False}
