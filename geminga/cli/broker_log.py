"""The broker's log on standard error: a problem that clients can cause is logged once, then counted.

`Repeats` decides, `BrokerLog` writes. Ten thousand bad connections are two lines a minute then, and not ten
thousand. What storage says is never left out: each such line is about another file or ledger.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Literal

import trio

from geminga.cli.output_thread import OutputThread

ROUND_SECONDS = 60.0
"""A problem that persists is logged again after this, with the number of records left out."""
COLLAPSED_LOGGERS = frozenset({"geminga.broker", "geminga.admin"})
"""Clients can cause these warnings as often as they like."""
KINDS_MAX = 256
MESSAGE_CHARS_MAX = 1000
"""Length kept of a suppressed message, which may later represent all of its kind."""
FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

Kind = tuple[object, ...]


class Repeats:
    """Which records of a round are written, and what stands for the others. Pure."""

    def __init__(self) -> None:
        self._left_out: dict[Kind, tuple[int, str, logging.LogRecord]] = {}

    def admits(self, record: logging.LogRecord) -> bool:
        """True if the record is to be written: the first of its kind in this round, or a kind not counted."""
        kind = kind_of(record)
        if kind is None:
            return True
        count, _, first = self._left_out.get(kind, (-1, "", record))
        if count < 0 and len(self._left_out) >= KINDS_MAX:
            return True
        # Only as text: arguments may hold on to a connection.
        message = record.getMessage()[:MESSAGE_CHARS_MAX] if count >= 0 else ""
        self._left_out[kind] = (count + 1, message, first)
        return count < 0

    def end_round(self) -> list[logging.LogRecord]:
        """Return one summary for each kind with suppressed records, and start counting again."""
        left_out, self._left_out = self._left_out, {}
        return [_summary(first, count, last) for count, last, first in left_out.values() if count]


def kind_of(record: logging.LogRecord) -> Kind | None:
    """The key by which two records count as the same problem: their log call and the kind of error.
    None: each is written.
    """
    if record.name not in COLLAPSED_LOGGERS:
        return None
    if record.exc_info and record.exc_info[1] is not None:
        return record.name, record.msg, type(record.exc_info[1]), _raised_at(record.exc_info[1])
    if record.levelno != logging.WARNING:
        return None
    errors = (type(given) for given in record.args or () if isinstance(given, BaseException))
    return record.name, record.msg, *errors


def _raised_at(error: BaseException) -> tuple[str, int] | None:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace and (trace.tb_frame.f_code.co_filename, trace.tb_lineno)


def _summary(first: logging.LogRecord, count: int, last: str) -> logging.LogRecord:
    text = f"{last} (the last of {count} more of this kind in {ROUND_SECONDS:.0f} s)"
    return logging.LogRecord(first.name, first.levelno, first.pathname, first.lineno, text, None, None)


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON: time (UTC, ISO 8601), level, logger, message, traceback if it has one."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {
            "time": at.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class BrokerLog(logging.StreamHandler[OutputThread]):
    """Lines on `stream`; at level debug all of them, else without repeats."""

    def __init__(self, stream: OutputThread, level: str, form: Literal["text", "json"] = "text") -> None:
        super().__init__(stream)
        self.setFormatter(JsonFormatter() if form == "json" else logging.Formatter(FORMAT))
        self._repeats = Repeats() if level != "debug" else None

    def emit(self, record: logging.LogRecord) -> None:
        if self._repeats is None or self._repeats.admits(record):
            super().emit(record)

    def tell_counts(self) -> None:
        """End the round: log how many records it suppressed."""
        if self._repeats is not None:
            self.acquire()
            try:
                for record in self._repeats.end_round():
                    super().emit(record)
            finally:
                self.release()

    async def end_rounds(self) -> None:
        """Tell the counts now and then, until cancelled."""
        while True:
            await trio.sleep(ROUND_SECONDS)
            self.tell_counts()
