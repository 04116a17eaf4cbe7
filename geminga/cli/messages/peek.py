"""`geminga peek`: look at messages without consuming them."""

from __future__ import annotations

import argparse
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlencode

import trio

from geminga.cli.admin.admin_http import Admin, topic_path
from geminga.cli.arguments.options import add_url, count, counted, duration_ms, positive, run_until_done
from geminga.cli.arguments.parser import EXIT_NOTHING, EXIT_OK, Parser
from geminga.cli.arguments.positions import EARLIEST, LATEST, start_position
from geminga.cli.client.addresses import web_url
from geminga.cli.client.client import open_client
from geminga.cli.client.errors import ClientError
from geminga.cli.client.message import Position
from geminga.cli.messages.printing import content, json_text
from geminga.cli.messages.read import open_reader
from geminga.cli.messages.receiving import QUEUE_MESSAGES, Limits, Receiving
from geminga.cli.messages.values import Decoded, Values
from geminga.cli.show import text
from geminga.cli.show.numbers import age_text, bytes_text
from geminga.cli.show.output import style, terminal_width
from geminga.clock import RealClock
from geminga.units import time_text

_POSITION = re.compile(r"(-?\d+):(-?\d+)")
_RANGE = re.compile(r"([(\[])(-?\d+):(-?\d+)(?:\.\.|,)(-?\d+):(-?\d+)([)\]])")
INDENT = "    "
CONTENT_LINES_MAX = 20
"""Of one message on a terminal."""


class Acknowledged:
    """What a subscription has acknowledged, by the internal statistics of its topic."""

    def __init__(self, cursor: dict[str, Any]) -> None:
        found = _POSITION.fullmatch(str(cursor["markDeletePosition"]))
        if found is None:
            raise ClientError(
                f"the broker says {cursor['markDeletePosition']!r} where a position is expected"
            )
        self.mark_delete: Position = (int(found[1]), int(found[2]))
        self._ranges: list[tuple[Position, Position, bool, bool]] = []
        self.add(cursor)

    @property
    def last(self) -> Position:
        """Of the ranges; before all positions without one."""
        return self._ranges[-1][1] if self._ranges else (-1, -1)

    def add(self, cursor: dict[str, Any]) -> None:
        """Ranges behind those that are there."""
        self._ranges += [
            ((int(lo), int(lo_entry)), (int(hi), int(hi_entry)), opening == "[", closing == "]")
            for opening, lo, lo_entry, hi, hi_entry, closing in _RANGE.findall(
                str(cursor.get("individuallyDeletedMessages", ""))
            )
        ]

    def __contains__(self, at: Position) -> bool:
        if at <= self.mark_delete:
            return True
        # The first range that may end behind it, and the one after that: ranges may share an end.
        place = bisect_left(self._ranges, at, key=lambda one: one[1])
        return any(
            (low < at or (with_low and low == at)) and (at < high or (with_high and high == at))
            for low, high, with_low, with_high in self._ranges[place : place + 2]
        )


def parser(kind: type[Parser]) -> Parser:
    made = kind(
        prog="geminga peek",
        description="Look at messages without consuming them: no cursor moves, no consumer misses one.",
    )
    add = made.add_argument
    add("topic", help="persistent://tenant/namespace/name, or a name in public/default")
    add(
        "at",
        nargs="?",
        type=start_position,
        metavar="POSITION",
        help="the message with this id, ledger:entry (with -n: and those behind it)",
    )
    add("-n", "--count", type=positive, default=1, help="how many messages (default: 1)")
    add("--skip", type=count, default=0, metavar="N", help="pass over the first N: --skip 2 shows the third")
    add("-s", "--subscription", help="those that this subscription has not acknowledged")
    add(
        "--from",
        type=start_position,
        default=EARLIEST,
        dest="start",
        metavar="POSITION",
        help="from here on: earliest or ledger:entry (default: earliest)",
    )
    add(
        "--timeout",
        type=duration_ms,
        default=10_000,
        metavar="TIME",
        help="wait at most so long (default: 10s)",
    )
    add("--raw", action="store_true", help="print payloads as they are, not by the topic's schema")
    add("--json", action="store_true", help="print each message as a line of JSON")
    add_url(made)
    return made


def run(kind: type[Parser], arguments: Sequence[str]) -> int:
    """The whole command; returns its exit code."""
    flags = parser(kind).parse_strictly(arguments)
    if flags.at is not None:
        flags = argparse.Namespace(**{**vars(flags), "start": flags.at})
    shown: list[Decoded] = []

    async def peek() -> int:
        await _peek(flags, shown)
        return EXIT_OK if shown else EXIT_NOTHING

    def summary() -> str:
        if not shown and (wanted := _wanted(flags)) is not None:
            unread = f" that {flags.subscription} has not acknowledged" if flags.subscription else ""
            return f"{flags.topic} has no message with the id {wanted[0]}:{wanted[1]}{unread}"
        return counted(len(shown), "message") if not flags.json else ""

    return run_until_done("peek", peek, summary)


def _wanted(flags: argparse.Namespace) -> Position | None:
    """The id that was given without `--from`; None: any message will do."""
    return None if flags.at in (None, EARLIEST, LATEST) else flags.at


async def _peek(flags: argparse.Namespace, shown: list[Decoded]) -> None:
    async with open_client(flags.url) as client:
        names = await client.partitions(flags.topic, create=False)
        passed_over = iter(range(flags.skip))
        for name in names:
            if len(shown) >= flags.count:
                return
            acknowledged = None
            if flags.subscription is not None:
                acknowledged = await trio.to_thread.run_sync(_acknowledged, flags, name)
            start = flags.start if acknowledged is None else max(flags.start, acknowledged.mark_delete)
            async with trio.open_nursery() as nursery:
                accept = _Accept(flags, shown, acknowledged, passed_over)
                limits = Limits(flags.count - len(shown), flags.timeout)
                receiving = Receiving(nursery, limits, Values(client, is_raw=flags.raw), accept)
                opened = await open_reader(
                    client, name, start, inclusive=True, follows=False, queue_messages=QUEUE_MESSAGES
                )
                if opened.last is not None and opened.last < start:
                    await opened.consumer.close()  # nothing is there, and nothing will come
                    nursery.cancel_scope.cancel()
                    continue
                receiving.add(opened)
                with accept.reading:
                    await receiving.run(acknowledges=False)
                nursery.cancel_scope.cancel()
                with trio.CancelScope(shield=True):
                    await receiving.close()


def _acknowledged(flags: argparse.Namespace, topic: str) -> Acknowledged:
    admin, path = Admin(web_url(flags.url)), f"{topic_path(topic)}/internalStats"
    cursors = admin.call("GET", path).get("cursors", {})
    if flags.subscription not in cursors:
        import difflib

        near = difflib.get_close_matches(flags.subscription, cursors, n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; it has {', '.join(sorted(cursors)) or 'none'}"
        raise ClientError(f"{topic} has no subscription {flags.subscription!r}{hint}")
    found = Acknowledged(cursor := cursors[flags.subscription])
    # Geminga lists some ranges in one answer; the others follow.
    while cursor.get("gemingaRangesLeftOut"):
        ledger_id, entry_id = found.last
        query = {"gemingaRangesOf": flags.subscription, "gemingaRangesAfter": f"{ledger_id}:{entry_id}"}
        answer = admin.call("GET", f"{path}?{urlencode(query)}")
        cursor = answer["cursors"].get(flags.subscription, {})
        found.add(cursor)
    return found


class _Accept:
    def __init__(
        self,
        flags: argparse.Namespace,
        shown: list[Decoded],
        acknowledged: Acknowledged | None,
        passed_over: Iterator[int],
    ) -> None:
        """`passed_over` has an item for each message that is yet to be passed over. `reading` is cancelled
        if the first message is not the one whose id was given.
        """
        self.reading = trio.CancelScope()
        self._wanted = _wanted(flags)
        self._flags = flags
        self._shown = shown
        self._acknowledged = acknowledged
        self._now_ms = RealClock().now_ms()
        self._passed_over = passed_over

    def __call__(self, decoded: Decoded) -> bool:
        at = (decoded.message.ledger_id, decoded.message.entry_id)
        is_acknowledged = self._acknowledged is not None and at in self._acknowledged
        wanted, self._wanted = self._wanted, None
        if wanted is not None and (at != wanted or is_acknowledged):
            self.reading.cancel()
        if is_acknowledged or self.reading.cancel_called:
            return False
        if next(self._passed_over, None) is not None:
            return False
        self._shown.append(decoded)
        if self._flags.json:
            line = json_text(decoded)
            print(text.escaped_json(line) if terminal_width() else line)
        else:
            print("\n".join(described(decoded, len(self._shown), self._now_ms, terminal_width())))
        return True


def described(decoded: Decoded, number: int, now_ms: int, width: int | None) -> list[str]:
    """A message for a person: where it is, what it carries, what it says."""
    message = decoded.message
    where = message.id + (f" [{message.batch_index}]" if message.batch_index >= 0 else "")
    look = style()
    age = age_text(max(0, now_ms - message.publish_time_ms))
    size = bytes_text(len(message.payload))
    head = f"{number}. {where}  {size}  published {time_text(message.publish_time_ms)}, {age} ago"
    lines = [f"{look.heading}{head}{look.end}" if look.heading else head]
    carried: list[tuple[str, str]] = []
    if message.has_key:
        carried.append(("key", message.key))
    if message.ordering_key:
        carried.append(("ordering key", message.ordering_key.decode(errors="backslashreplace")))
    carried += [(f"property {name}", value) for name, value in message.properties.items()]
    if message.event_time_ms:
        carried.append(("event time", time_text(message.event_time_ms)))
    if message.deliver_at_ms:
        due_ms = message.deliver_at_ms - now_ms
        when = f"in {age_text(due_ms)}" if due_ms > 0 else f"{age_text(-due_ms)} ago"
        carried.append(("deliver at", f"{time_text(message.deliver_at_ms)}, {when}"))
    carried.append(("producer", f"{message.producer_name}, sequence {message.sequence_id}"))
    if decoded.schema is not None:
        carried.append(("schema", f"{decoded.schema.name.upper()}, version {decoded.schema_version}"))
    if decoded.problem:
        carried.append(("problem", decoded.problem))
    longest = max(len(name) for name, _ in carried)
    lines += [f"{INDENT}{text.escaped(name):{longest}}  {text.escaped(value)}" for name, value in carried]
    body = content(decoded).decode(errors="backslashreplace")
    body_lines = text.escaped_lines(body).split("\n")
    if width is not None and len(body_lines) > CONTENT_LINES_MAX:
        rest = len(body_lines) - CONTENT_LINES_MAX
        body_lines = [*body_lines[:CONTENT_LINES_MAX], f"... {rest} more lines"]
    lines += [f"{INDENT}{line}" for line in body_lines]
    return lines
