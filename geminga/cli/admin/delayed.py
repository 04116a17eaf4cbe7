"""`geminga delayed`: what a subscription holds back, until when, and how to change that."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

from geminga.cli.admin.admin_http import DEFAULT_URL, URL_VARIABLE, unreachable
from geminga.cli.arguments.options import duration_ms, positive
from geminga.cli.arguments.parser import EXIT_FAILED, EXIT_OK, Parser
from geminga.clock import RealClock
from geminga.errors import InvalidName
from geminga.limits import DUE_MS_MAX
from geminga.names import TopicName

SECONDS_MAX = 30
BAR_WIDTH = 50
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DAMAGES = {
    "lose-bucket": "deleted ledger {}, which held a bucket",
    "truncate-bucket": "cut a bucket short: ledger {} has what is left of it",
    "corrupt-bucket": "flipped a bit of a bucket, which is in ledger {} now",
}


class Refused(Exception):
    """What the broker answered, or that it did not."""


def run(kind: type[Parser], arguments: Sequence[str]) -> int:
    parser = kind(prog="geminga delayed", description="Look into delayed messages, and change their times.")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def action(name: str, text: str) -> argparse.ArgumentParser:
        made = actions.add_parser(name, help=text, description=text)
        made.add_argument("topic")
        made.add_argument("-s", "--subscription", required=True)
        made.add_argument(
            "--url",
            default=os.environ.get(URL_VARIABLE, DEFAULT_URL),
            help=f"the broker's admin address (default: ${URL_VARIABLE} or {DEFAULT_URL})",
        )
        made.add_argument("--json", action="store_true", help="as the broker answers")
        return made

    action("summary", "how many messages wait, and what their index takes")
    histogram = action("histogram", "how many messages are due when; ~ where that is estimated")
    histogram.add_argument("--width", type=_width_ms, default=60_000, metavar="TIME", help="such as 1m")
    listing = action("list", "messages that wait, in the order of the topic")
    listing.add_argument("--from", dest="start", type=_place, default="0:0", metavar="LEDGER:ENTRY")
    listing.add_argument("--limit", type=positive, default=100, help="at most 1000 (default: 100)")
    why = action("why", "why a message is not delivered yet")
    why.add_argument("message", type=_place, metavar="LEDGER:ENTRY")
    action("buckets", "buckets and segments of the index")
    cancel = action("cancel", "acknowledge messages that wait, so that they are never delivered")
    cancel.add_argument("messages", type=_place, nargs="+", metavar="LEDGER:ENTRY")
    expedite = action("expedite", "deliver a message that waits now")
    expedite.add_argument("message", type=_place, metavar="LEDGER:ENTRY")
    postpone = action("postpone", "give a message that waits another time")
    postpone.add_argument("message", type=_place, metavar="LEDGER:ENTRY")
    until = postpone.add_mutually_exclusive_group(required=True)
    until.add_argument("--for", dest="wait_ms", type=duration_ms, metavar="TIME", help="from now on: 1h")
    until.add_argument(
        "--until",
        type=_time_ms,
        metavar="WHEN",
        help="such as 2030-01-31T12:00 (local time) or 2030-01-31T12:00Z, or ms since 1970",
    )
    for name, text in (
        ("lose-bucket", "delete a bucket behind the index's back (only with --chaos)"),
        ("truncate-bucket", "cut a bucket short behind the index's back (only with --chaos)"),
        ("corrupt-bucket", "flip a bit of a bucket behind the index's back (only with --chaos)"),
    ):
        action(name, text).add_argument(
            "--ledger", type=positive, help="of the bucket; the first one if not given"
        )
    flags = parser.parse_strictly(arguments)
    try:
        return _ACTIONS.get(flags.action, _damage)(flags)
    except (Refused, InvalidName, ValueError) as error:
        print(f"geminga delayed {flags.action}: {error}", file=sys.stderr)
        return EXIT_FAILED


def _ask(flags: argparse.Namespace, tail: str, body: Mapping[str, object] | None = None) -> Any:
    """The broker's answer as JSON, None for an empty one. Without a body it is a GET."""
    from urllib.error import HTTPError, URLError
    from urllib.request import Request, urlopen

    topic = TopicName.parse(flags.topic)
    path = "/".join(
        quote(part, safe="") for part in (topic.namespace.tenant, topic.namespace.local, topic.local)
    )
    root = f"{flags.url.rstrip('/')}/geminga/delayed/persistent/{path}"
    url = f"{root}/subscription/{quote(flags.subscription, safe='')}{tail}"
    if not url.startswith(("http://", "https://")):
        raise Refused(f"{flags.url}: an address begins with http://")
    data = None if body is None else json.dumps(body).encode()
    request = Request(url, data=data, headers={"Content-Type": "application/json"})
    try:
        with urlopen(request, timeout=SECONDS_MAX) as response:
            answer = response.read()
    except HTTPError as error:
        raise Refused(_reason(error.read()) or str(error)) from None
    except (URLError, OSError) as error:
        raise Refused(unreachable(flags.url, error)) from None
    return json.loads(answer) if answer else None


def _reason(answer: bytes) -> str:
    try:
        reason = json.loads(answer).get("reason")
    except (ValueError, AttributeError):
        return ""
    return _printable(reason) if isinstance(reason, str) else ""


def _printable(text: str) -> str:
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", " ", text)


def _print(flags: argparse.Namespace, answer: Any, show: Callable[[Any], None]) -> int:
    if flags.json:
        print(json.dumps(answer))
    else:
        show(answer)
    return EXIT_OK


def _summary(flags: argparse.Namespace) -> int:
    def show(answer: Any) -> None:
        due = f", {answer['due']} of them due" if answer["due"] else ""
        print(f"messages that wait  {answer['messages']}{due}")
        print(f"not acknowledged    {answer['backlog']}, these included")
        if answer["pending"] or answer["toBeSentAgain"]:
            print(f"with consumers      {answer['pending']}, and {answer['toBeSentAgain']} to be sent again")
        if answer["unread"]:
            print(f"not read yet        {answer['unread']}")
        print(f"next due            {_time_text(answer['nextDueMs'])}")
        print(f"index in memory     {answer['indexBytes']} bytes{' (shared)' if answer['isShared'] else ''}")
        if answer["keepsBuckets"]:
            print(f"buckets on disk     {answer['buckets']}, {answer['bucketBytes']} bytes")
        if not answer["holdsBack"]:
            print("Exclusive and Failover consumers get every message at once, whatever its time.")
        elif answer["unread"] and not answer["consumers"]:
            print("No consumer is connected: what is to be read (again) by one does not count as waiting.")

    return _print(flags, _ask(flags, ""), show)


def _histogram(flags: argparse.Namespace) -> int:
    def show(answer: Any) -> None:
        classes, width_ms = answer["classes"], answer["widthMs"]
        most = max((row["messages"] for row in classes), default=0)
        if classes:
            asked = (
                "" if width_ms == flags.width else f" ({_width_text(flags.width)} would be too many lines)"
            )
            print(f"each line is {_width_text(width_ms)}{asked}")
        for row in classes:
            bar = "#" * max(1, round(BAR_WIDTH * row["messages"] / most))
            about = "~" if row.get("isEstimated") else ""
            print(f"{_time_text(row['fromMs']):24}  {about + str(row['messages']):>11}  {bar}")
        if not classes:
            print("no message waits")

    return _print(flags, _ask(flags, f"/histogram?widthMs={flags.width}"), show)


def _list(flags: argparse.Namespace) -> int:
    def show(answer: Any) -> None:
        for message in answer["messages"]:
            place = f"{message['ledgerId']}:{message['entryId']}"
            print(f"{place:20} {_time_text(message['dueMs'])}")
        if not answer["messages"]:
            print("no message waits" + ("" if flags.start == "0:0" else f" from {flags.start} on"))
        if answer["next"] is not None:
            print(f"more: --from {answer['next']}")

    return _print(flags, _ask(flags, f"/messages?start={quote(flags.start)}&limit={flags.limit}"), show)


def _why(flags: argparse.Namespace) -> int:
    ledger, _, entry = flags.message.partition(":")
    answer = _ask(flags, f"/why/{quote(ledger, safe='')}/{quote(entry, safe='')}")
    until = f", until {_time_text(answer['dueMs'])}" if answer["reason"] == "delayed" else ""
    return _print(flags, answer, lambda found: print(found["text"] + until))


def _buckets(flags: argparse.Namespace) -> int:
    def show(answer: Any) -> None:
        if not answer:
            keeps = _ask(flags, "")["keepsBuckets"]
            print(
                "no bucket yet"
                if keeps
                else "the index is in memory, without buckets (see docs/delayed-delivery.md)"
            )
            return
        print(f"{'LEDGERS':17} {'IN LEDGER':>10} {'WAIT':>9} {'BYTES':>9} {'SEGMENTS':>9} {'LOADED':>7}  DUE")
        for bucket in answer:
            segments = bucket["segments"]
            loaded = sum(segment["isLoaded"] for segment in segments)
            own = "memory" if bucket["ledgerId"] is None else bucket["ledgerId"]
            first = min((s["firstDueMs"] for s in segments), default=None)
            last = max((s["lastDueMs"] for s in segments), default=None)
            print(
                f"{bucket['startLedger']:>8}-{bucket['endLedger']:<8} {own:>10} {bucket['messages']:>9} "
                f"{bucket['bytes']:>9} {len(segments):>9} {loaded:>7}  "
                f"{_time_text(first)} to {_time_text(last)}"
            )

    return _print(flags, _ask(flags, "/buckets"), show)


def _cancel(flags: argparse.Namespace) -> int:
    answer = _ask(flags, "/cancel", {"messages": flags.messages})
    _print(flags, answer, lambda found: print(f"cancelled: {found['cancelled']}"))
    not_cancelled = answer.get("notCancelled", [])
    for one in not_cancelled:
        text = _printable(f"{one['message']} is not cancelled: {one['why']}")
        print(f"geminga delayed cancel: {text}", file=sys.stderr)
    return EXIT_FAILED if not_cancelled else EXIT_OK


def _expedite(flags: argparse.Namespace) -> int:
    return _print(
        flags,
        _ask(flags, "/expedite", {"message": flags.message}),
        lambda _: print(f"{flags.message} is due now"),
    )


def _postpone(flags: argparse.Namespace) -> int:
    due_ms = flags.until
    if due_ms is None:
        due_ms = RealClock().now_ms() + flags.wait_ms
    if due_ms > DUE_MS_MAX:
        raise Refused(f"the latest time that a message can be given is {_time_text(DUE_MS_MAX)}")
    body = {"message": flags.message, "dueMs": due_ms}
    shown = f"{flags.message} is due {_time_text(due_ms)}"
    return _print(flags, _ask(flags, "/postpone", body), lambda _: print(shown))


def _damage(flags: argparse.Namespace) -> int:
    body = {} if flags.ledger is None else {"ledgerId": flags.ledger}
    answer = _ask(flags, f"/{flags.action}", body)
    return _print(flags, answer, lambda found: print(DAMAGES[flags.action].format(found["ledgerId"])))


_ACTIONS: dict[str, Callable[[argparse.Namespace], int]] = {
    "summary": _summary,
    "histogram": _histogram,
    "list": _list,
    "why": _why,
    "buckets": _buckets,
    "cancel": _cancel,
    "expedite": _expedite,
    "postpone": _postpone,
}


def _place(text: str) -> str:
    if re.fullmatch(r"[0-9]+:[0-9]+", text) is None:
        raise argparse.ArgumentTypeError(f"expected a message as ledger:entry, not {text!r}")
    return text


def _width_ms(text: str) -> int:
    width_ms = duration_ms(text)
    if width_ms < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1ms, not {text!r}")
    return width_ms


def _width_text(width_ms: int) -> str:
    """Such as `17h 4m`: exact, without the units of which there are none."""
    parts, left = [], width_ms
    for unit, unit_ms in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        count, left = divmod(left, unit_ms)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts)


def _time_ms(text: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a time such as 2030-01-31T12:00, not {text!r}") from None
    return round(given.timestamp() * 1000)


def _time_text(time_ms: int | None) -> str:
    if time_ms is None:
        return "-"
    if time_ms > DUE_MS_MAX:
        return "after the year 9999"
    try:
        return (EPOCH + timedelta(milliseconds=time_ms)).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"
    except OverflowError:
        return f"{time_ms} ms"
