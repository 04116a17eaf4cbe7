"""Histories as text: a line of JSON for each record, `docs/chaos-history.md`. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, BinaryIO, Final

import msgspec

from geminga.cli.chaos.checking.history import (
    Doing,
    Fault,
    Fencing,
    History,
    Jump,
    Left,
    Probe,
    Producing,
    Received,
    Receiving,
    Record,
    Sample,
    Seek,
    Sent,
    Session,
    Subscription,
    Taking,
    Time,
)
from geminga.cli.chaos.checking.scenario import (
    MESSAGES_MAX,
    OPERATORS,
    InvalidScenario,
    Scenario,
    of_builtins,
)
from geminga.errors import GemingaError

FORMATS: Final = (1, 2)
"""2: with an operator's steps and what they took, which readers of 1 do not know."""

NO_HISTORY: Final = (
    "expected the first line of a history, as 'geminga chaos run SCENARIO --history FILE' writes"
)
LINE_BYTES_MAX: Final = 16 << 20
"""A longer line is no record: a scenario is the longest, with a few kilobytes."""


class InvalidHistory(GemingaError):
    """The text says what is wrong, in which line."""


class _Misplaced(Exception):
    """A record does not fit to those before it: it refers to one that is not there."""


class Begin(Record, tag="run", kw_only=True):
    """The first line."""

    format: int
    scenario: dict[str, Any]
    replay: str = ""
    """The command that does the run again."""
    against: str = ""
    """What broker it was, if it was not of the run's own."""
    began_ms: Time
    offset_ms: Annotated[int, msgspec.Meta(ge=-(1 << 53), le=1 << 53)] = 0


class End(Record, tag="end", kw_only=True):
    """The last line; a history without one was cut off."""

    ended_ms: Time
    is_drained: bool = False
    stuck: list[str] = msgspec.field(default_factory=list)
    stuck_ms: Time = 0
    broken: list[str] = msgspec.field(default_factory=list)


class Told(msgspec.Struct, frozen=True):
    """A run as a file tells it."""

    scenario: Scenario
    history: History
    replay: str
    against: str


_Line = (
    Begin
    | Producing
    | Sent
    | Subscription
    | Session
    | Received
    | Doing
    | Jump
    | Seek
    | Taking
    | Fencing
    | Fault
    | Sample
    | Probe
    | Left
    | End
)
_DECODER: Final = msgspec.json.Decoder(_Line)
# A duration of a scenario is an int of its own kind.
_ENCODER: Final = msgspec.json.Encoder(enc_hook=int)


def written(told: Told) -> Iterator[bytes]:
    """The lines, each with its newline."""
    history = told.history
    begin = Begin(
        format=FORMATS[history.takings != [] or any(step.do in OPERATORS for step in told.scenario.steps)],
        scenario=msgspec.to_builtins(told.scenario, enc_hook=int),
        replay=told.replay,
        against=told.against,
        began_ms=history.began_ms,
        offset_ms=history.offset_ms,
    )
    end = End(
        ended_ms=history.ended_ms,
        is_drained=history.is_drained,
        stuck=history.stuck,
        stuck_ms=history.stuck_ms,
        broken=history.broken,
    )
    parts: tuple[Iterable[Record], ...] = (
        [begin],
        history.producers,
        (one for sent in history.sent for one in sent if one.first_ms),
        (receiving.subscription for receiving in history.subscriptions),
        history.sessions,
        (one for receiving in history.subscriptions for one in receiving.deliveries),
        history.doings,
        history.jumps,
        history.seeks,
        history.takings,
        history.fencings,
        history.faults,
        history.samples,
        history.probes,
        history.left,
        [end],
    )
    return (_ENCODER.encode(record) + b"\n" for part in parts for record in part)


def lines_of(file: BinaryIO) -> Iterator[bytes]:
    """Its lines, of which one that is too long comes in parts: no file can fill the memory with one."""
    return iter(lambda: file.readline(LINE_BYTES_MAX + 1), b"")


def read(lines: Iterable[bytes]) -> Told:
    """Raises `InvalidHistory`."""
    begin: Begin | None = None
    scenario = None
    history = History(0)
    lists: dict[type, list[Any]] = {
        Producing: history.producers,
        Session: history.sessions,
        Doing: history.doings,
        Jump: history.jumps,
        Seek: history.seeks,
        Taking: history.takings,
        Fencing: history.fencings,
        Fault: history.faults,
        Sample: history.samples,
        Probe: history.probes,
        Left: history.left,
    }
    is_ended = False
    number = 0
    try:
        for line in lines:
            number += 1
            record = _decoded(line)
            if begin is None and not isinstance(record, Begin):
                raise _Misplaced(f"it is a line of a {record.__struct_config__.tag!r}")
            if is_ended:
                raise _Misplaced("the line before it is the last one of a history")
            if isinstance(record, Begin):
                if begin is not None:
                    raise _Misplaced("a second run begins here")
                if record.format not in FORMATS:
                    raise InvalidHistory(f"line 1: expected a run of format {FORMATS[-1]} at most")
                begin = record
                scenario = of_builtins(record.scenario)
                history.begin_at(record.began_ms, record.offset_ms)
            elif isinstance(record, Sent):
                _place(history, record)
            elif isinstance(record, Subscription):
                history.subscriptions.append(Receiving(record, []))
            elif isinstance(record, Received):
                _check_refers(history, record)
                history.subscriptions[record.subscription].deliveries.append(record)
            elif isinstance(record, End):
                is_ended = True
                history.end(record.ended_ms)
                history.tell_end(record.stuck, record.stuck_ms, record.broken)
                if record.is_drained:
                    history.drained()
            else:
                if isinstance(record, Left):
                    _check_left(history, record)
                lists[type(record)].append(record)
    except (msgspec.DecodeError, InvalidScenario, _Misplaced) as error:
        if begin is None:
            raise InvalidHistory(f"line {number}: {NO_HISTORY}: {error}") from None
        raise InvalidHistory(f"line {number}: {error}") from None
    if begin is None or scenario is None:
        raise InvalidHistory("the file is empty")
    if not is_ended:
        raise InvalidHistory(f"line {number}: the file ends here, without its last line")
    _room_for_all(history)
    return Told(scenario, history, begin.replay, begin.against)


def _decoded(line: bytes) -> _Line:
    if len(line) > LINE_BYTES_MAX:
        raise _Misplaced(f"it has more than {LINE_BYTES_MAX:,} bytes")
    try:
        found: _Line = _DECODER.decode(line)
    except RecursionError:
        raise _Misplaced("it has lists or objects in each other without end") from None
    except UnicodeDecodeError as error:
        raise _Misplaced(f"it is not UTF-8: {error.reason}") from None
    return found


def _room_for_all(history: History) -> None:
    """A list for each producer, also for one of which nothing was sent."""
    while len(history.sent) < len(history.producers):
        history.sent.append([])


def _place(history: History, sent: Sent) -> None:
    """By producer and number; what was planned and not sent is left out in the file."""
    if not 0 <= sent.producer < len(history.producers):
        raise _Misplaced(f"a message of producer {sent.producer}, of which no line tells")
    _room_for_all(history)
    own = history.sent[sent.producer]
    if sent.number < len(own):
        raise _Misplaced(
            f"message {sent.number} of producer {sent.producer} comes again, or behind a later one"
        )
    if sent.number >= MESSAGES_MAX:
        raise _Misplaced(f"message {sent.number}: a producer has {MESSAGES_MAX:,} at most")
    # One for all of them: a line of a few bytes would take gigabytes otherwise.
    own.extend([Sent(producer=sent.producer, number=-1)] * (sent.number - len(own)))
    own.append(sent)


def _check_refers(history: History, received: Received) -> None:
    if not 0 <= received.subscription < len(history.subscriptions):
        raise _Misplaced(f"a delivery to subscription {received.subscription}, of which no line tells")
    if not 0 <= received.session < len(history.sessions):
        raise _Misplaced(f"a delivery in session {received.session}, of which no line tells")


def _check_left(history: History, left: Left) -> None:
    if not 0 <= left.subscription < len(history.subscriptions):
        raise _Misplaced(f"what is left of subscription {left.subscription}, of which no line tells")
