"""Which lines of the broker's log are written, and which are counted."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from geminga.cli.broker_log import KINDS_MAX, BrokerLog, Repeats
from geminga.cli.output_thread import OutputThread
from geminga.clock import RealClock
from geminga.errors import ChecksumMismatch, ProtocolError


def record(
    text: str, *args: object, name: str = "geminga.broker", level: int = logging.WARNING
) -> logging.LogRecord:
    return logging.LogRecord(name, level, __file__, 1, text, args, None)


def admitted(repeats: Repeats, *records: logging.LogRecord) -> list[str]:
    return [each.getMessage() for each in records if repeats.admits(each)]


CLOSED = "%s: connection closed: %s"


def test_a_kind_of_trouble_is_told_once_a_round_and_then_counted() -> None:
    repeats = Repeats()
    many = [record(CLOSED, f"/{i}", ProtocolError("too long")) for i in range(300)]
    assert admitted(repeats, *many) == ["/0: connection closed: too long"]
    assert [(each.name, each.levelname, each.getMessage()) for each in repeats.end_round()] == [
        (
            "geminga.broker",
            "WARNING",
            "/299: connection closed: too long (the last of 299 more of this kind in 60 s)",
        )
    ]
    assert admitted(repeats, many[0], many[1]) == ["/0: connection closed: too long"]
    assert len(repeats.end_round()) == 1
    assert repeats.end_round() == []


def test_other_errors_and_other_places_are_other_kinds() -> None:
    repeats = Repeats()
    assert len(
        admitted(
            repeats,
            record(CLOSED, "/1", ProtocolError("too long")),
            record(CLOSED, "/1", ChecksumMismatch("wrong")),
            record("%s: no answer to PING", "/1"),
            record("%s: no answer to PING", "/1", name="geminga.admin"),
            record(CLOSED, "/2", ProtocolError("torn")),
        )
    ) == 4  # fmt: skip


@pytest.mark.parametrize(
    ("name", "level"),
    [
        ("geminga.broker", logging.ERROR),
        ("geminga.broker", logging.INFO),
        ("geminga.bookie", logging.WARNING),
        ("geminga.standalone", logging.WARNING),
    ],
)
def test_what_names_lost_messages_or_happens_by_itself_is_never_left_out(name: str, level: int) -> None:
    repeats = Repeats()
    many = [record("%s: entry %d", "a", n, name=name, level=level) for n in range(5)]
    assert len(admitted(repeats, *many)) == 5
    assert repeats.end_round() == []


def raised_by(number: str) -> logging.LogRecord:
    try:
        int(number)
    except ValueError as error:
        made = record("a bug", level=logging.ERROR)
        made.exc_info = (type(error), error, error.__traceback__)
    return made


def test_a_bug_that_a_client_brings_about_again_and_again_has_one_traceback() -> None:
    repeats = Repeats()
    assert admitted(repeats, *(raised_by(f"x{i}") for i in range(9))) == ["a bug"]
    [summary] = repeats.end_round()
    assert summary.getMessage() == "a bug (the last of 8 more of this kind in 60 s)"
    assert summary.exc_info is None


def test_kinds_are_bounded() -> None:
    repeats = Repeats()
    many = [record(f"kind {i}") for i in range(KINDS_MAX + 10)]
    assert len(admitted(repeats, *many)) == len(many)
    assert len(admitted(repeats, *many)) == 10, "those beyond the bound are written, not counted"


@pytest.mark.parametrize(("level", "lines"), [("info", 2), ("debug", 5)])
def test_on_a_stream(tmp_path: Path, level: str, lines: int) -> None:
    descriptor = os.open(tmp_path / "log", os.O_CREAT | os.O_WRONLY)
    stream = OutputThread(descriptor)
    handler = BrokerLog(stream, level)
    for i in range(5):
        handler.handle(record("%s: no CONNECT", f"/{i}"))
    handler.tell_counts()
    stream.finish(RealClock().monotonic_s() + 20)
    os.close(descriptor)
    written = (tmp_path / "log").read_text().splitlines()
    assert len(written) == lines
    assert " WARNING geminga.broker: /0: no CONNECT" in written[0]
    assert " WARNING geminga.broker: /4: no CONNECT" in written[-1]
