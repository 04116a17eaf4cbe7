"""`geminga clock`: what a broker's clock shows; jumps of a virtual one."""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from geminga.cli.arguments.options import add_web_url, counted, duration_ms, time_ms
from geminga.cli.arguments.parser import EXIT_FAILED, EXIT_OK, Parser
from geminga.units import time_text

SECONDS_MAX = 24 * 3600
PATH = "/geminga/clock"


def run(kind: type[Parser], arguments: Sequence[str]) -> int:
    from geminga.cli.admin.admin_http import Admin, RequestFailed

    flags = _parser(kind).parse_strictly(arguments)
    try:
        admin = Admin(flags.url, seconds_max=SECONDS_MAX)
        answer = admin.call("GET", PATH) if flags.verb == "now" else admin.call("POST", PATH, _jump(flags))
    except RequestFailed as error:
        print(f"geminga clock: {error}", file=sys.stderr)
        return EXIT_FAILED
    if flags.json:
        print(json.dumps(answer))
    elif flags.verb == "now":
        print_report(answer)
    else:
        _print_jump(answer)
    return EXIT_OK


def _parser(kind: type[Parser]) -> Parser:
    parser = kind(
        prog="geminga clock",
        description="Show a broker's clock, and move it if it is virtual ('geminga standalone --clock "
        "virtual'). A move returns when all that fell due has happened.",
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)

    def verb_named(name: str, text: str) -> argparse.ArgumentParser:
        made = verbs.add_parser(name, help=text, description=text)
        add_web_url(made)
        made.add_argument("--json", action="store_true", help="as the broker answers")
        return made

    verb_named("now", "show the clock")
    advance = verb_named("advance", "move it by a duration")
    advance.add_argument("length", metavar="LENGTH", type=duration_ms, help="such as 250ms, 2s, 1h30m, 30d")
    to = verb_named("to", "move it to a moment")
    to.add_argument("time", metavar="TIME", type=time_ms, help="such as 2026-12-24T18:00Z")
    following = verb_named("next", "move it to when something happens by itself")
    for verb in (advance, to, following):
        verb.add_argument(
            "--acknowledged",
            action="store_true",
            help="at each due time, wait until consumers have acknowledged what they were given",
        )
        verb.add_argument(
            "--timeout",
            metavar="LENGTH",
            type=duration_ms,
            default=30_000,
            help="how long to wait for acknowledgements at each due time (default: 30s)",
        )
    return parser


def _jump(flags: Any) -> Mapping[str, object]:
    where: dict[str, object] = {"next": True}
    if flags.verb == "advance":
        where = {"ms": flags.length}
    elif flags.verb == "to":
        where = {"to_ms": flags.time}
    wait = "acknowledged" if flags.acknowledged else "dispatched"
    return {**where, "wait": wait, "wait_seconds": flags.timeout / 1000}


def print_report(report: Mapping[str, Any]) -> None:
    ahead_s = (report["now_ms"] - report["wall_ms"]) / 1000
    print(f"now       {time_text(report['now_ms'])}  ({report['clock']})")
    if report["clock"] == "virtual":
        print(f"ahead by  {datetime.timedelta(seconds=round(ahead_s))}")
    if report.get("stands"):
        print("stands    it could not be saved where it stands: geminga clock advance 0 lets it tick on")
    print(f"next due  {_next_due_text(report)}")


def _next_due_text(report: Mapping[str, Any]) -> str:
    due_ms = report["next_due_ms"]
    unread = _unread_text(report.get("unread_topics", 0), report.get("unread_entries", 0))
    if due_ms is None:
        return f"not known yet: {unread}" if unread else "-"
    return f"{time_text(due_ms)}, or before: {unread}" if unread else time_text(due_ms)


def _unread_text(topics: int, entries: int) -> str:
    """ "": the broker has read everything."""
    found = []
    if topics:
        found.append(f"the broker has just started, and still reads {counted(topics, 'topic')}")
    if entries:
        number = "1 unread entry" if entries == 1 else f"{entries} unread entries"
        found.append(f"{number} may be delayed, to be read for a consumer with room")
    return "; ".join(found)


def _print_jump(jump: Mapping[str, Any]) -> None:
    print(f"now       {time_text(jump['to_ms'])}")
    if jump["event"]:
        print(f"event     {jump['event']}")
    print(f"moved by  {datetime.timedelta(milliseconds=jump['to_ms'] - jump['from_ms'])}")
    print(f"stops     {jump['stops']}{'' if jump['is_exact'] else ', many due times at some of them'}")
    for name in jump["waiting"]:
        print(f"due messages wait for a consumer with room: {name}")
    for name in jump["unacknowledged"]:
        print(f"not acknowledged in time: {name}")
    for name in jump["unfinished"]:
        print(f"not at rest yet: {name}")
