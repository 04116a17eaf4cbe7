"""`geminga delayed`: what a subscription holds back, until when, and how to change that."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from geminga.cli.admin import delayed_verify
from geminga.cli.admin.admin_http import Admin, RequestFailed, topic_path, unreachable
from geminga.cli.admin.delayed_text import (
    bucket_lines,
    content_lines,
    content_message_lines,
    due_text,
    histogram_lines,
    list_lines,
    precision_lines,
    summary_lines,
    width_text,
)
from geminga.cli.arguments import guesses
from geminga.cli.arguments.options import add_web_url, duration_ms, positive, time_ms
from geminga.cli.arguments.parser import EXIT_FAILED, EXIT_OK, Parser
from geminga.cli.client.addresses import web_url
from geminga.cli.client.errors import ClientError
from geminga.client.admin import delayed_path
from geminga.config.operator_token import operator_headers
from geminga.errors import InvalidName
from geminga.limits import DUE_MS_MAX, PRECISION_MAX_MS
from geminga.names import TopicName

SECONDS_MAX = 30
DAMAGES = {
    "lose-bucket": "deleted ledger {}, which held a bucket",
    "truncate-bucket": "cut a bucket short: what was left of it is in ledger {}",
    "corrupt-bucket": "flipped a bit of a bucket: it is in ledger {}",
}
DAMAGED = "the broker knows, and reads its messages again: 'geminga delayed buckets' shows it come back"
DAMAGED_UNWATCHED = "the broker knows, and reads its messages again when a consumer connects"
DAMAGED_QUIETLY = "the broker does not know yet: 'geminga delayed verify' has it look"


class Refused(Exception):
    """What the broker answered, or that it did not."""

    def __init__(self, reason: str, status: str = "") -> None:
        """`status` as of `RequestFailed`."""
        super().__init__(reason)
        self.status = status


def run(kind: type[Parser], arguments: Sequence[str]) -> int:
    parser = kind(prog="geminga delayed", description="Inspect delayed messages, and change their times.")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def action(name: str, text: str) -> argparse.ArgumentParser:
        made = actions.add_parser(name, help=text, description=text)
        made.add_argument("topic")
        made.add_argument("-s", "--subscription", help="may be left out if the topic has only one")
        add_web_url(made)
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
    action("buckets", "the parts of the index: how many messages wait in each, and what is not read yet")
    show = action("show", "what a bucket on disk holds")
    show.add_argument(
        "bucket", help="its ledger (45) or the ledgers it covers (10-11), as buckets lists them"
    )
    show.add_argument("--messages", action="store_true", help="its messages by due time, page by page")
    show.add_argument("--from", dest="start", type=_count, default=0, metavar="ROW", help="of the messages")
    show.add_argument("--limit", type=positive, default=100, help="at most 1000 (default: 100)")
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
        type=time_ms,
        metavar="WHEN",
        help="such as 2030-01-31T12:00, in UTC unless it names a zone, or ms since 1970",
    )
    precision = action("precision", "how early messages may be, so that they come together; or change it")
    change = precision.add_mutually_exclusive_group()
    change.add_argument("--set", dest="precision_ms", type=duration_ms, metavar="TIME", help="such as 1s")
    change.add_argument("--unset", action="store_true", help="use the broker's setting")
    for name, text in (
        ("lose-bucket", "delete a bucket (only with --chaos)"),
        ("truncate-bucket", "cut a bucket short (only with --chaos)"),
        ("corrupt-bucket", "flip a bit of a bucket (only with --chaos)"),
    ):
        damage = action(name, text)
        damage.add_argument("--ledger", type=positive, help="of the bucket; the first one if not given")
        damage.add_argument("--quietly", action="store_true", help="let the broker find out by itself")
    delayed_verify.add_to(actions)
    flags = parser.parse_strictly(arguments)
    try:
        if "subscription" in flags and flags.subscription is None and flags.action != "verify":
            flags = argparse.Namespace(**{**vars(flags), "subscription": _only_subscription(flags)})
        return _ACTIONS.get(flags.action, _damage)(flags)
    except (Refused, RequestFailed, InvalidName, ValueError) as error:
        hint = _subscriptions_hint(flags) if getattr(error, "status", "").startswith("404") else ""
        print(f"geminga delayed {flags.action}: {error}{hint}", file=sys.stderr)
        return EXIT_FAILED


def _only_subscription(flags: argparse.Namespace) -> str:
    """The topic's, if there is one; else the user has to choose."""
    found: list[str] = Admin(flags.url).call("GET", f"{topic_path(flags.topic)}/subscriptions")
    if len(found) != 1:
        raise Refused(f"give a subscription with -s; the topic has {', '.join(sorted(found)) or 'none'}")
    return found[0]


def _ask(
    flags: argparse.Namespace, tail: str, body: Mapping[str, object] | None = None, method: str | None = None
) -> Any:
    """The broker's answer as JSON, None for an empty one. Without a body and a method it is a GET."""
    from urllib.error import HTTPError, URLError
    from urllib.request import Request, urlopen

    path = delayed_path(TopicName.parse(flags.topic), flags.subscription)
    try:
        url = f"{web_url(flags.url)}{path}{tail}"
    except ClientError as error:
        raise Refused(str(error)) from None
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **operator_headers(os.environ, path)}
    request = Request(url, data=data, headers=headers, method=method)
    try:
        with urlopen(request, timeout=SECONDS_MAX) as response:
            answer = response.read()
    except HTTPError as error:
        raise Refused(_reason(error.read()) or str(error), f"{error.code} {error.reason}") from None
    except (URLError, OSError) as error:
        raise Refused(unreachable(flags.url, error)) from None
    return json.loads(answer) if answer else None


def _subscriptions_hint(flags: argparse.Namespace) -> str:
    """What the topic has instead; "": it has the one that was asked for, or is not there."""
    if flags.topic is None or flags.subscription is None:
        return ""
    try:
        found: list[str] = Admin(flags.url).call("GET", f"{topic_path(flags.topic)}/subscriptions")
    except RequestFailed:
        return ""
    if flags.subscription in found:
        return ""
    return guesses.name(flags.subscription, found) or f"; it has {', '.join(sorted(found)) or 'none'}"


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


def _lines(lines: Callable[[Any], Iterable[str]]) -> Callable[[Any], None]:
    return lambda answer: print(*lines(answer), sep="\n")


def _summary(flags: argparse.Namespace) -> int:
    return _print(flags, _ask(flags, ""), _lines(summary_lines))


def _histogram(flags: argparse.Namespace) -> int:
    answer = _ask(flags, f"/histogram?widthMs={flags.width}")
    return _print(flags, answer, _lines(lambda found: histogram_lines(found, flags.width)))


def _list(flags: argparse.Namespace) -> int:
    answer = _ask(flags, f"/messages?start={quote(flags.start)}&limit={flags.limit}")
    return _print(flags, answer, _lines(lambda found: list_lines(found, flags.start)))


def _why(flags: argparse.Namespace) -> int:
    ledger, _, entry = flags.message.partition(":")
    answer = _ask(flags, f"/why/{quote(ledger, safe='')}/{quote(entry, safe='')}")
    until = f", until {due_text(answer['dueMs'])}" if answer["reason"] == "delayed" else ""
    return _print(flags, answer, lambda found: print(found["text"] + until))


def _buckets(flags: argparse.Namespace) -> int:
    answer = _ask(flags, "/buckets")
    has_some = flags.json or any(part["ledgerId"] is not None for part in answer)
    summary = {"keepsBuckets": True, "holdsBack": True} if has_some else _ask(flags, "")
    keeps, holds_back = summary["keepsBuckets"], summary["holdsBack"]
    return _print(
        flags, answer, _lines(lambda found: bucket_lines(found, keeps_buckets=keeps, holds_back=holds_back))
    )


def _show(flags: argparse.Namespace) -> int:
    path = f"/show/{quote(flags.bucket, safe='')}"
    if not flags.messages:
        return _print(flags, _ask(flags, path), _lines(content_lines))
    answer = _ask(flags, f"{path}/messages?start={flags.start}&limit={flags.limit}")
    return _print(flags, answer, _lines(content_message_lines))


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
        # Of the broker: its clock may be a virtual one.
        due_ms = Admin(flags.url).call("GET", "/geminga/clock")["now_ms"] + flags.wait_ms
    if due_ms > DUE_MS_MAX:
        raise Refused(f"the latest time that a message can be given is {due_text(DUE_MS_MAX)}")
    body = {"message": flags.message, "dueMs": due_ms}
    shown = f"{flags.message} is due {due_text(due_ms)}"
    return _print(flags, _ask(flags, "/postpone", body), lambda _: print(shown))


def _precision(flags: argparse.Namespace) -> int:
    if flags.unset:
        _ask(flags, "/precision", method="DELETE")
    elif flags.precision_ms is not None:
        if flags.precision_ms > PRECISION_MAX_MS:
            raise Refused(f"--set: the widest precision is {width_text(PRECISION_MAX_MS)}")
        _ask(flags, "/precision", {"precisionMs": flags.precision_ms})

    return _print(flags, _ask(flags, "/precision"), _lines(precision_lines))


def _damage(flags: argparse.Namespace) -> int:
    body: dict[str, object] = {} if flags.ledger is None else {"ledgerId": flags.ledger}
    answer = _ask(flags, f"/{flags.action}", body | {"quietly": flags.quietly})
    then = DAMAGED_QUIETLY
    if not (flags.quietly or flags.json):
        then = DAMAGED if _ask(flags, "")["consumers"] else DAMAGED_UNWATCHED
    return _print(
        flags, answer, lambda found: print(DAMAGES[flags.action].format(found["ledgerId"]) + "; " + then)
    )


_ACTIONS: dict[str, Callable[[argparse.Namespace], int]] = {
    "summary": _summary,
    "histogram": _histogram,
    "list": _list,
    "why": _why,
    "buckets": _buckets,
    "show": _show,
    "cancel": _cancel,
    "expedite": _expedite,
    "postpone": _postpone,
    "verify": delayed_verify.verify,
    "precision": _precision,
}


def _place(text: str) -> str:
    if re.fullmatch(r"[0-9]+:[0-9]+", text) is None:
        raise argparse.ArgumentTypeError(f"expected a message as ledger:entry, not {text!r}")
    return text


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"expected a number, not {text!r}")
    return int(text)


def _width_ms(text: str) -> int:
    width_ms = duration_ms(text)
    if width_ms < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1ms, not {text!r}")
    return width_ms
