"""History files that no run has written: each is refused with one line, whatever it says."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from geminga.cli.arguments.parser import EXIT_FAILED, Parser
from geminga.cli.chaos.chaos import EXIT_WRONG, run
from geminga.cli.chaos.checking.check import check
from geminga.cli.chaos.checking.history_file import LINE_BYTES_MAX, InvalidHistory, lines_of, read
from geminga.cli.chaos.checking.junit import junit
from geminga.cli.chaos.checking.picture import picture
from geminga.cli.chaos.checking.report import html_report, text_report
from tests.cli.chaos.story import BEGAN_MS, Story
from tests.cli.chaos.test_report import report

BEGIN = {"is": "run", "format": 1, "scenario": {"name": "s"}, "began_ms": BEGAN_MS}
PRODUCER = {"is": "producer", "topic": 0, "name": "p0"}
SENT = {"is": "sent", "producer": 0, "number": 0, "crc": 5, "first_ms": BEGAN_MS, "receipt_ms": BEGAN_MS + 1}
SUBSCRIPTION = {"is": "subscription", "topic": 0, "name": "s", "type": "Shared"}
SESSION = {"is": "session", "number": 0, "consumer": "c", "began_ms": BEGAN_MS}
RECEIVED = {"is": "received", "producer": 0, "number": 0, "crc": 5, "at_ms": BEGAN_MS + 9}
RECEIVED |= {"ledger_id": 1, "entry_id": 0, "ack_ms": BEGAN_MS + 9, "acked_ms": BEGAN_MS + 10}
LEFT = {"is": "left", "subscription": 0, "partition": -1, "backlog": 0, "pending": 0, "delayed": 0}
END = {"is": "end", "ended_ms": BEGAN_MS + 60, "is_drained": True}
PROBE = {"is": "probe", "at_ms": BEGAN_MS + 5}
DEEP = b"[" * 100_000 + b"]" * 100_000


def lines(**changed: Any) -> list[bytes]:
    """Of a run of one message. `sent=` has the line of that kind say so in these fields, or be this text."""
    found = []
    for record in (BEGIN, PRODUCER, SENT, SUBSCRIPTION, SESSION, RECEIVED, PROBE, LEFT, END):
        change = changed.get(str(record["is"]), {})
        found.append(change if isinstance(change, bytes) else json.dumps(record | change).encode())
    return found


def test_an_unchanged_one_passes() -> None:
    told = read(lines())
    assert check(told.history, told.scenario.expect).verdict(told.scenario.expect) == "passed"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"run": {"format": 9}}, "line 1: expected a run of format 2 at most"),
        ({"run": {"began_ms": -1}}, "line 1: .*began_ms"),
        ({"run": {"scenario": {"name": 5}}}, "line 1: .*Expected `str`"),
        ({"run": {"scenario": {"name": "s", "drain": "x"}}}, "line 1: 'x': expected milliseconds"),
        ({"run": {"scenario": {"name": "s", "drain": -1}}}, "line 1: -1: expected milliseconds"),
        ({"producer": b'{"is":"producer","topic":0,"name":"\xff"}'}, "line 2: it is not UTF-8"),
        (
            {"producer": b'{"is":"producer","topic":0,"name":"p","more":' + DEEP + b"}"},
            "line 2: it has lists",
        ),
        ({"producer": b'{"is":"zebra"}'}, "line 2: Invalid value 'zebra'"),
        ({"producer": json.dumps(BEGIN).encode()}, "line 2: a second run begins here"),
        ({"sent": {"producer": 1}}, "line 3: a message of producer 1, of which no line tells"),
        ({"sent": {"number": 10**9}}, "line 3: message 1000000000: a producer has 10,000,000 at most"),
        ({"sent": {"number": -1}}, "line 3: message -1 of producer 0 comes again"),
        ({"sent": {"receipt_ms": 10**30}}, "line 3: .*receipt_ms"),
        ({"sent": {"receipt_ms": -5}}, "line 3: .*receipt_ms"),
        ({"received": {"session": 7}}, "line 6: a delivery in session 7, of which no line tells"),
        ({"received": {"subscription": -1}}, "line 6: a delivery to subscription -1"),
        ({"received": {"at_ms": 10**400}}, "line 6: "),
        ({"probe": {"late_ms": 1e300}}, "line 7: .*late_ms"),
        ({"probe": {"late_ms": float("nan")}}, "line 7: JSON is malformed"),
        ({"left": {"subscription": 3}}, "line 8: what is left of subscription 3, of which no line tells"),
        ({"left": json.dumps(END).encode()}, "line 9: the line before it is the last one"),
        ({"end": {"ended_ms": -5}}, "line 9: .*ended_ms"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_with_its_place(
    changed: dict[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InvalidHistory, match=f"^{said}"):
        read(lines(**changed))
    file = tmp_path / "history.jsonl"
    file.write_bytes(b"\n".join(lines(**changed)) + b"\n")
    assert run(Parser, ["check", str(file)]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"geminga chaos check: {file}: line ")
    assert shown.err.count("\n") == 1


def test_a_producer_of_which_nothing_was_sent_may_stand_anywhere() -> None:
    found = lines()
    del found[2]
    told = read([*found[:2], found[1], *found[2:]])
    assert told.history.sent == [[], []]
    assert "no message was confirmed" in check(told.history, told.scenario.expect).not_shown


def test_a_line_without_an_end_does_not_fill_the_memory() -> None:
    file = io.BytesIO(b"x" * (3 * LINE_BYTES_MAX))
    with pytest.raises(InvalidHistory, match=f"it has more than {LINE_BYTES_MAX:,} bytes"):
        read(lines_of(file))
    assert file.tell() == LINE_BYTES_MAX + 1


@pytest.mark.parametrize(
    "changed",
    [
        {"end": {"ended_ms": 1 << 53}},
        {"run": {"offset_ms": -(1 << 53)}},
        {"received": {"at_ms": 1 << 53, "ledger_id": (1 << 64) - 1}},
        {"probe": {"late_ms": 1e12, "client_waits_ms": 1e12, "broker_waits_ms": 1e12}},
        {"left": {"backlog": -(1 << 53), "delayed": 1 << 53}},
        {"session": {"subscription": 99, "number": 5, "passive_ms": [1 << 53]}},
        {"probe": json.dumps({"is": "jump", "asked_ms": 1 << 53, "to_ms": 0, "done_ms": 1}).encode()},
        {
            "probe": json.dumps({"is": "sample", "at_ms": 0, "backlog": -(1 << 53)}).encode()[:-1]
            + b',"delayed":0,"buckets":-1}'
        },
    ],
)
def test_whatever_is_read_can_be_judged_and_shown(changed: dict[str, Any]) -> None:
    told = read(lines(**changed))
    made = report(Story())._replace(
        scenario=told.scenario,
        history=told.history,
        findings=check(told.history, told.scenario.expect),
    )
    assert text_report(made)
    assert html_report(made)
    ElementTree.fromstring(picture(told.history))
    ElementTree.fromstring(junit([made]))


def test_a_terminal_obeys_nothing_that_a_file_says() -> None:
    story = Story()
    story.deliver_all()
    story.do(100, "\x1b[2J\x07evil\x9b31m \ufffe", "dead")
    made = report(story)
    assert "\\x1b[2J\\x07evil\\x9b31m \\ufffe" in text_report(made)
    assert all(one.isprintable() or one == "\n" for one in text_report(made))
    assert ElementTree.fromstring(junit([made])).get("failures") == "1"


@pytest.mark.parametrize("flag", ["--out", "--junit"])
def test_a_file_that_cannot_be_written_takes_no_verdict_with_it(
    flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "history.jsonl"
    file.write_bytes(b"\n".join(lines()) + b"\n")
    assert run(Parser, ["check", str(file), flag, str(tmp_path)]) == EXIT_FAILED
    shown = capsys.readouterr()
    assert shown.out.startswith("s: passed\n")
    assert "with a picture" not in shown.out
    assert shown.err == f"geminga chaos: {tmp_path}: Is a directory\n"
    file.write_bytes(b"\n".join(lines(received={"crc": 6})) + b"\n")
    assert run(Parser, ["check", str(file), flag, str(tmp_path)]) == EXIT_WRONG
    assert capsys.readouterr().out.startswith("s: wrong\n")


def test_a_run_begins_only_if_its_files_can_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for flag in ("--out", "--history", "--junit"):
        assert run(Parser, ["run", "pause", flag, str(tmp_path)]) == EXIT_FAILED
        text = f"geminga chaos run: {tmp_path} cannot be written to: name another file\n"
        assert capsys.readouterr().err == text
