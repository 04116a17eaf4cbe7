"""Scenario files: what is shipped can be read, what is wrong is named, and what a seed draws."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from geminga.chaos.rules.rule import parse_rule
from geminga.cli.chaos.checking.load_plan import parsed, payload, planned
from geminga.cli.chaos.checking.scenario import InvalidScenario, Load, parse_scenario
from geminga.cli.chaos.shipped.scenarios import names, scenario, text_of

MINIMAL = '[[consumers]]\nsubscription = "s"\n'
FAULT = MINIMAL + '[[steps]]\ndo = "fault"\n'


def test_the_shipped_ones() -> None:
    assert {"bucket-loss", "disk-full", "power-loss", "slow-disk", "network", "flood", "pause"} <= set(
        names()
    )
    for name in names():
        found = scenario(name)
        assert len(found.text) > 20
        assert (found.threads != []) == name.startswith("pulsar-")


def test_a_fault_has_the_fields_of_a_rule_and_durations_as_text() -> None:
    step = '[[steps]]\ndo = "fault"\nfault = "wire/latency"\nlatency = "50ms"\njitter = "1s"\nfor = "2s"\n'
    rule = parse_scenario(MINIMAL + step, "x").steps[0].rule
    assert parse_rule(rule).jitter_ms == 1000
    assert (rule["latencyMs"], rule["jitterMs"], rule["durationMs"]) == (50, 1000, 2000)


def test_the_page_lists_them() -> None:
    page = (Path(__file__).parents[3] / "docs" / "chaos.md").read_text().partition("`--seed N`")[0]
    rows = dict(re.findall(r"^\| `([\w-]+)` \| ([^|]+) \|$", page, re.M))
    assert {name: scenario(name).text for name in names()} == {name: rows[name] for name in names()}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "expected at least one"),
        ("[load", "Expected ']'"),
        (MINIMAL + "[laod]\nbytes = 20\n", "there is no 'laod'"),
        (
            MINIMAL + "[load]\nbytes = 20\nrats = 3\n",
            "unknown field `rats` - at `$.load`; there are topics, part",
        ),
        (MINIMAL + "[load]\nmessages = 0\n", "`int` >= 1"),
        (MINIMAL + "[load]\nmessages = 'many'\n", "Expected `int`"),
        (MINIMAL + "[load]\ndelayed = 1.0\n", "the shortest and the longest delay"),
        (MINIMAL + '[load]\ndelayed = 1.0\ndelay = ["2s", "1s"]\n', "the shortest and the longest delay"),
        (MINIMAL + '[load]\ndelay = ["2 apples", "1s"]\n', "expected a duration such as 250ms"),
        (MINIMAL + '[load]\ndelay = [7, "1s"]\n', "such as 250ms"),
        (MINIMAL + '[load]\ndelayed = 1.0\ndelay = "5s"\n', 'the longest delay, such as ["1s", "10s"]'),
        ('[consumers]\nsubscription = "s"\n', "consumers: begin each of them with [[consumers]]"),
        (MINIMAL + '[steps]\nat = "1s"\ndo = "kill"\n', "steps: begin each of them with [[steps]]"),
        ("load = 3\n" + MINIMAL, "Expected `object`"),
        (MINIMAL + MINIMAL, "a subscription of its own"),
        (MINIMAL + 'type = "Exclusive"\ncount = 2\n', "one consumer"),
        (MINIMAL + 'type = "Failover"\nnack = 0.5\n', "nack needs"),
        (MINIMAL + 'type = "Shred"\n', "'Shred' - at `$.consumers[0].type`; there are Exclusive, Failover"),
        (
            MINIMAL + '[[steps]]\ndo = "explode"\n',
            "'explode' - at `$.steps[0].do`; there are fault, clear, kill",
        ),
        (MINIMAL + '[[steps]]\ndo = "advance"\nlength = "1s"\n', 'needs clock = "virtual"'),
        (MINIMAL + '[[steps]]\ndo = "pause"\n', "needs a length"),
        (MINIMAL + '[[steps]]\ndo = "grow"\npartitions = 3\n', "needs load.partitions"),
        (MINIMAL + '[load]\npartitions = 3\n[[steps]]\ndo = "grow"\npartitions = 3\n', "more partitions"),
        (MINIMAL + '[[steps]]\ndo = "kill"\nwhich = "all"\n', "takes no which"),
        (MINIMAL + '[[steps]]\ndo = "fault"\nwhich = "all"\n', "PLACE/KIND"),
        (MINIMAL + '[[steps]]\ndo = "burst"\n', "burst needs messages"),
        (MINIMAL + '[[steps]]\ndo = "restore"\n', "restore needs a copy before it"),
        (MINIMAL + '[[steps]]\ndo = "remove"\n', 'remove needs files = "index"'),
        (MINIMAL + '[[steps]]\ndo = "copy"\nfiles = "index"\n', "'copy' takes no files"),
        (MINIMAL + '[[steps]]\ndo = "kill"\nlength = "2s"\nneeds_hits = 1\n', "takes no length, needs_hits"),
        (
            FAULT + 'fault = "wire/cut"\ncomand = "SEND"\n',
            "steps: wire/cut: comand: a rule has no such field",
        ),
        (FAULT + 'fault = "wire/cut"\ncommand = "SENDD"\n', "wire/cut: command: expected a command of"),
        (FAULT + 'fault = "journal/slo"\n', "journal/slo: kind: expected one of slow, eio"),
        (FAULT + 'fault = "journal/slow"\n', "journal/slow: latencyMs: journal/slow needs it"),
        (FAULT + 'fault = "journal/torn"\noperation = "sync"\n', "can hit write, never sync"),
        (FAULT + 'fault = "wire/latency"\nlatency = 20\n', "latency: expected a duration as text, such as"),
        (FAULT + 'fault = "wire/cut"\nlength = "2s"\n', "length: a rule has no such field"),
        (FAULT + 'fault = "bucket/lose"\ntopic = "t"\n', "subscription: bucket/lose needs it"),
        (MINIMAL + '[[steps]]\ndo = "remove"\nfiles = "journal"\nstopped = true\n', "cannot be judged"),
        ("steps = 5\n" + MINIMAL, "not iterable"),
        ("broker = 5\n" + MINIMAL, "items"),
    ],
)
def test_what_is_wrong_is_named(text: str, reason: str) -> None:
    with pytest.raises(InvalidScenario, match=re.escape(reason)) as raised:
        parse_scenario(text, "mine")
    assert str(raised.value).startswith("mine: ")


def test_a_name_that_is_none_lists_those_that_are() -> None:
    with pytest.raises(
        InvalidScenario, match="bucket-loss, deduplication, disk-full.* Did you mean bucket-loss"
    ):
        text_of("bucket_loss")


def test_the_seed_draws_the_messages() -> None:
    load = Load(messages=500, keys=7, delayed=0.5, delay=scenario("pause").load.delay)

    def drawn(seed: int, producer: int) -> list[tuple[str, int]]:
        return [(sent.key, sent.delay_ms) for sent in planned(load, seed, producer)]

    assert drawn(1, 0) == drawn(1, 0)
    assert drawn(1, 0) != drawn(2, 0)
    assert drawn(1, 0) != drawn(1, 1)
    assert 200 < sum(1 for _, delay_ms in drawn(1, 0) if delay_ms) < 300


@pytest.mark.parametrize("size", [16, 17, 1000])
def test_a_payload_says_what_it_is_and_whether_it_is_whole(size: int) -> None:
    sent = planned(Load(messages=3), 1, 5)[2]
    body = payload(sent, size)
    assert len(body) == size
    assert parsed(body) == (5, 2)
    for place in range(size):
        flipped = bytearray(body)
        flipped[place] ^= 4
        assert parsed(bytes(flipped)) is None
    assert parsed(body[:11]) is None


def test_pace_and_scale() -> None:
    found = scenario("disk-full").scaled(0.1, 99, pace=2.0)
    assert (found.load.messages, found.load.rate, found.seed) == (300, 1600, 99)
    assert [step.at for step in found.steps] == [500, 500]
    assert found.steps[0].rule["durationMs"] == 1500
    assert list(found.load.delay) == [250, 2000]
    assert list(scenario("bucket-loss").scaled(1, None, pace=2.0).load.delay) == [60_000, 3_600_000]


def test_slack_is_for_lateness_alone() -> None:
    found = parse_scenario(MINIMAL + '[expect]\nlate = "1s"\nprompt = "200ms"\nlost = 2\n', "x")
    lenient = found.with_slack(3).expect
    assert (lenient.late, lenient.prompt, lenient.p99, lenient.lost) == (3000, 600, None, 2)
    assert (lenient.early_by, lenient.doubled) == (0, 0)
