"""Each verb with each of its flags does with this broker what it did with a real Pulsar.

`recorded.json` has what it did there (`record.py`), `differences.tsv` what differs here, and why.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from geminga.cli.arguments.options import URL_VARIABLE, WEB_URL_VARIABLE
from geminga.cli.arguments.parser import Parser
from geminga.cli.verbs.rows.running import parser_of
from geminga.cli.verbs.rows.verb import Verb
from tests.cli.verbs.record import GROUPS, RECORDED, Played, lines, play, schema_file, settled, verbs_of
from tests.e2e.broker_process import BrokerProcess

DIFFERENCES = Path(__file__).with_name("differences.tsv")
FIGURES = (
    "topics stats",
    "topics partitioned-stats",
    "topics info-internal",
    "topics get-message-id",
    "topics last-message-id",
    "topics analyze-backlog",
    "topics get-backlog-size",
    "broker",
    "bookies list-bookies",
    "bookies racks-placement",
    "produce",
)
"""Of these the exit code is compared: they show figures, or the broker itself."""
NEVER_ANSWERED = {("brokers", "namespaces"), ("topics", "get-message-by-id")}
"""Verbs that read, and that no line asks with success: they need an address or a ledger of the run."""
OWN = ("ttl-from-due-time", "backlog-quota-from-due-time")


class Here(NamedTuple):
    """What the lines do here, by their place in the list."""

    as_given: dict[int, Played]
    as_json: dict[int, Played]
    """Of verbs that read, with `--json` as well."""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Here]:
    with (
        BrokerProcess(tmp_path_factory.mktemp("verbs") / "data") as process,
        pytest.MonkeyPatch.context() as patch,
        schema_file() as schema,
    ):
        patch.setenv(WEB_URL_VARIABLE, process.endpoints.web_url)
        patch.setenv(URL_VARIABLE, process.endpoints.service_url)
        found = Here({}, {})
        for number, line in enumerate(lines()):
            found.as_given[number] = play(line, schema)
            if reads(line):
                found.as_json[number] = play(f"{line} --json", schema)
        yield found


def reads(line: str) -> bool:
    group, name, *_ = line.split(" ")
    return group in GROUPS and verbs_of(group)[name].reads and "--help" not in line and "--json" not in line


def differences() -> dict[str, str]:
    return dict(line.split("\t", 1) for line in DIFFERENCES.read_text().splitlines()[1:])


def shown(line: str, played: Played) -> object:
    out = settled(played.out)
    if line.startswith(FIGURES) or "--help" in line:
        return None
    try:
        return json.loads(out)
    except ValueError:
        return sorted(sorted(re.split(r"[\[\], ]+", text)) for text in out.splitlines())


def test_each_verb_that_reads_prints_one_json_document(here: Here) -> None:
    seen, wrong = set(), []
    for number, played in here.as_json.items():
        line = lines()[number]
        if played.code != here.as_given[number].code or not is_document(played.out, played.code):
            wrong.append((line, played))
        if played.code == 0:
            seen.add(tuple(line.split(" ")[:2]))
    assert not wrong
    reading = {(group, name) for group, name, verb in every_verb() if verb.reads and not name.endswith(OWN)}
    assert reading - seen == NEVER_ANSWERED


def is_document(out: str, code: int) -> bool:
    """One JSON document, and of a command that failed nothing."""
    if code:
        return out == ""
    try:
        json.loads(out)
    except ValueError:
        return False
    return True


def test_json_has_what_the_lines_for_people_have(here: Here) -> None:
    def document(line: str, turn: int = 0) -> Any:
        places = [number for number, given in enumerate(lines()) if given == line]
        return json.loads(here.as_json[places[turn]].out)

    assert document("brokers healthcheck") == "ok"
    assert document("namespaces permissions acme/shop", 1) == {"clerk": ["consume", "produce"]}
    assert document("topics list acme/shop")[0]["topic"] == "persistent://acme/shop/orders"


def test_each_line_does_what_it_does_with_a_real_pulsar(here: Here) -> None:
    recorded = json.loads(RECORDED.read_text())
    assert [line for line, *_ in recorded] == lines(), "record.py has not been run since the lines changed"
    known, met, wrong = differences(), set(), []
    for number, (line, *there) in enumerate(recorded):
        played, real = here.as_given[number], Played(*there)
        if (played.code, shown(line, played)) == (real.code, shown(line, real)):
            continue
        met.add(line)
        if line not in known:
            wrong.append((line, played, real))
    assert not wrong
    assert set(known) == met, "differences that are none"


def every_verb() -> list[tuple[str, str, Verb]]:
    return [(group, name, verb) for group in GROUPS for name, verb in verbs_of(group).items()]


def test_each_verb_is_in_a_line_and_each_flag_in_one_of_its_group() -> None:
    verbs, words = set(), {group: set[str]() for group in GROUPS}
    for line in lines():
        group, name, *rest = line.split(" ")
        if group in words:
            verbs.add((group, name))
            words[group].update(rest)
    words["subscriptions"] |= words["topics"]  # whose rows it has
    missing = [
        (group, name, flag.names)
        for group, name, verb in every_verb()
        for flag in verb.flags
        if not words[group] & set(flag.names)
    ]
    missing += [(group, name, ()) for group, name, _ in every_verb() if (group, name) not in verbs]
    assert [line for line in missing if not line[1].endswith(OWN)] == []


@pytest.mark.parametrize("group", GROUPS)
def test_each_verb_has_help_and_no_flag_twice(group: str) -> None:
    for name, verb in verbs_of(group).items():
        text = parser_of(Parser, f"geminga {group} {name}", verb).format_help()
        assert verb.text.replace(" ", "") in "".join(text.split())
