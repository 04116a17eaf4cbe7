"""`geminga events`: what happened in a running broker, in order."""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from geminga.cli.admin.admin_http import Admin, RequestFailed
from geminga.cli.arguments.options import add_web_url, positive
from geminga.cli.arguments.parser import EXIT_FAILED, EXIT_OK, Parser
from geminga.cli.show.text import escaped

PATH: Final = "/geminga/events"
LIMIT: Final = 20
KIND_WIDTH: Final = 16


def run(kind: type[Parser], arguments: Sequence[str]) -> int:
    flags = _parser(kind).parse_strictly(arguments)
    wanted = {"kind": ",".join(flags.kind) or None, "topic": flags.topic, "subscription": flags.subscription}
    try:
        admin = Admin(flags.url)
        if flags.kinds:
            _print_kinds(admin.call("GET", f"{PATH}/kinds"), as_json=flags.json)
            return EXIT_OK
        events = admin.call("GET", PATH, since=flags.since, limit=flags.limit, **wanted)
        _print_all(events, as_json=flags.json)
        if flags.follow:
            _follow(admin, events[-1]["sequence"] if events else flags.since, wanted, as_json=flags.json)
    except RequestFailed as error:
        print(f"geminga events: {error}", file=sys.stderr)
        return EXIT_FAILED
    return EXIT_OK


def _parser(kind: type[Parser]) -> Parser:
    parser = kind(
        prog="geminga events",
        description="Show what happened in a running broker, in order: buckets, losses and rebuilds, faults, "
        "jumps of the clock, full disks.",
    )
    add_web_url(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="go on until interrupted")
    parser.add_argument("--since", metavar="N", type=positive, help="events after this number")
    parser.add_argument(
        "--limit", metavar="N", type=positive, default=LIMIT, help=f"at most so many (default: {LIMIT})"
    )
    parser.add_argument(
        "--kind", metavar="KIND", action="append", default=[], help="only this kind; may be repeated"
    )
    parser.add_argument("--topic", metavar="TOPIC", help="only this topic, or those that begin so: NAME*")
    parser.add_argument("--subscription", metavar="NAME", help="only this subscription")
    parser.add_argument("--kinds", action="store_true", help="list the kinds of events and what they mean")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each event")
    return parser


def _follow(admin: Admin, since: int | None, wanted: Mapping[str, object], *, as_json: bool) -> None:
    """Until interrupted, or the broker ends."""
    for field, value in admin.sent(PATH, since=since, **wanted):
        if field == "data":
            found = json.loads(value)
            if "kind" in found:
                _print_all([found], as_json=as_json)
            else:
                print(f"{found['events']} events came too fast and are left out", file=sys.stderr)


def _print_kinds(kinds: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(kinds))
        return
    for name, kind in kinds.items():
        counts = f" ({', '.join(kind['counts'])})" if kind["counts"] else ""
        print(f"{name:<{KIND_WIDTH}} {kind['text']}{counts}")


def _print_all(events: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    for event in events:
        print(json.dumps(event) if as_json else line(event))
    sys.stdout.flush()


def line(event: Mapping[str, Any]) -> str:
    """One event for a person: number, time, kind, and what it is about."""
    moment = datetime.datetime.fromtimestamp(event["time_ms"] / 1000, datetime.UTC)
    parts = [
        f"{event['sequence']:>6}",
        f"{moment:%Y-%m-%d %H:%M:%S}.{event['time_ms'] % 1000:03}",
        f"{event['kind']:<{KIND_WIDTH}}",
    ]
    if "topic" in event:
        subscription = f" / {event['subscription']}" if "subscription" in event else ""
        parts.append(escaped(event["topic"].removeprefix("persistent://") + subscription))
    if "bucket" in event:
        parts.append(f"bucket {event['bucket']}")
    parts += [_count(name, value) for name, value in event.get("counts", {}).items()]
    if event.get("times", 1) > 1:
        parts.append(f"({event['times']} times)")
    if "text" in event:
        parts.append(escaped(event["text"]))
    return "  ".join(parts).rstrip()


def _count(name: str, value: int) -> str:
    if name.endswith("_ms"):
        moment = datetime.datetime.fromtimestamp(value / 1000, datetime.UTC)
        return f"{name.removesuffix('_ms')}={moment:%Y-%m-%dT%H:%M:%SZ}"
    return f"{name}={value}"
