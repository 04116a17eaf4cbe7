"""`geminga fault`: rules that inject faults into a running broker, which was started with `--chaos`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote

from geminga.cli.admin.admin_http import Admin, RequestFailed
from geminga.cli.arguments.options import add_web_url, duration_ms, positive, positive_bytes, signed_ms
from geminga.cli.arguments.parser import EXIT_FAILED, EXIT_OK, Parser
from geminga.cli.show.table import Column, table

ROOT = "/geminga/faults"
FLAGS: dict[str, tuple[str, str]] = {
    "client": ("ADDRESS", "of a client, with or without its port"),
    "version": ("TEXT", "beginning of the client's version, such as Pulsar-CPP"),
    "command": ("NAME", "of the protocol, such as SEND"),
    "direction": ("in|out", "from clients or to clients"),
    "operation": ("NAME", "of the place: see 'geminga fault places'"),
    "path": ("TEXT", "a part of a file's name, or the beginning of a path of the metadata or the admin port"),
    "method": ("NAME", "of a request to the admin port, such as PUT"),
    "topic": ("NAME", "full name, or its beginning and *"),
    "subscription": ("NAME", "of the topic"),
    "which": ("first|last|all", "buckets, by due time"),
    "name": ("NAME", "of a cursor's property, or of a point of the process"),
    "error": ("NAME", "of the protocol, such as ServiceNotReady"),
    "message": ("TEXT", "of an error"),
}
"""Fields that are passed as they are."""
COLUMNS = (
    Column("id", "id"),
    Column("fault", "fault"),
    Column("fields", "fields"),
    Column("hits", "hits", str),
    Column("calls", "calls", str),
    Column("state", "state"),
)


def run(kind: type[Parser], arguments: Sequence[str]) -> int:
    parser = kind(
        prog="geminga fault", description="Inject faults into a running broker (started with --chaos)."
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def action(name: str, text: str) -> argparse.ArgumentParser:
        made = actions.add_parser(name, help=text, description=text)
        add_web_url(made)
        made.add_argument("--json", action="store_true", help="as the broker answers")
        return made

    _add_set(action("set", "put a rule in force"))
    action("list", "the rules, how often each was hit, and when it ends")
    clear = action("clear", "end rules and remove them")
    clear.add_argument("ids", nargs="*", metavar="ID", help="as list shows them")
    clear.add_argument("--all", action="store_true", help="all rules")
    action("places", "where which kinds of faults can be injected, and what each takes")
    flags = parser.parse_strictly(arguments)
    if flags.action == "clear" and bool(flags.ids) == flags.all:
        parser.error("clear: expected the ids of rules, or --all")
    try:
        return _ACTIONS[flags.action](Admin(flags.url), flags)
    except RequestFailed as error:
        print(f"geminga fault {flags.action}: {error}", file=sys.stderr)
        return EXIT_FAILED


def _add_set(made: argparse.ArgumentParser) -> None:
    made.add_argument("fault", metavar="PLACE/KIND", type=_place, help="such as wire/latency")
    made.add_argument("--id", help="of the new rule (default: the broker gives one)")
    for name, (metavar, text) in FLAGS.items():
        made.add_argument(f"--{name}", metavar=metavar, help=text)
    made.add_argument("--ledger", dest="ledgerId", type=positive, metavar="ID", help="of a bucket")
    made.add_argument("--quietly", action="store_true", default=None, help="the broker finds out by itself")
    made.add_argument("--latency", dest="latencyMs", type=duration_ms, metavar="TIME", help="such as 50ms")
    made.add_argument("--jitter", dest="jitterMs", type=duration_ms, metavar="TIME", help="of the latency")
    made.add_argument(
        "--slice", dest="sliceBytes", type=positive_bytes, metavar="SIZE", help="of each piece: 100, 4k"
    )
    made.add_argument("--status", type=positive, metavar="N", help="of an HTTP answer, from 400 to 599")
    made.add_argument(
        "--rate", dest="bytesPerS", type=positive_bytes, metavar="SIZE", help="per second: 4096, 64k"
    )
    made.add_argument("--probability", type=float, metavar="P", help="above 0, at most 1 (default: 1)")
    made.add_argument("--after", type=positive, metavar="N", help="operations that pass first")
    made.add_argument("--count", type=positive, metavar="N", help="hits until the rule ends")
    made.add_argument(
        "--for", dest="durationMs", type=duration_ms, metavar="TIME", help="until the rule ends"
    )
    made.add_argument(
        "--keep", action="store_true", default=None, help="the next starts put the rule in force again"
    )
    made.add_argument("--step", dest="stepMs", type=signed_ms, metavar="TIME", help="of a clock: 1h, or =-1h")
    made.add_argument("--ppm", type=int, metavar="N", help="millionths by which a clock runs faster")
    made.add_argument("--seed", type=int, help="of probability, jitter and flipped bits (default: 0)")


def _place(text: str) -> str:
    if text.count("/") != 1:
        raise argparse.ArgumentTypeError(f"expected PLACE/KIND such as wire/latency, not {text!r}")
    return text


FIELDS = (
    "id",
    *FLAGS,
    "ledgerId",
    "quietly",
    "latencyMs",
    "jitterMs",
    "bytesPerS",
    "sliceBytes",
    "status",
    "probability",
    "after",
    "count",
    "durationMs",
    "seed",
    "stepMs",
    "ppm",
    "keep",
)


def _set(admin: Admin, flags: argparse.Namespace) -> int:
    place, _, kind = flags.fault.partition("/")
    given = {name: getattr(flags, name) for name in FIELDS if getattr(flags, name) is not None}
    answer = admin.call("POST", ROOT, {"place": place, "kind": kind, **given})
    return _print(flags, answer, [f"{answer['rule']['id']}: {_described(answer)}"])


def _list(admin: Admin, flags: argparse.Namespace) -> int:
    answer = admin.call("GET", ROOT)
    return _print(flags, answer, rule_lines(answer))


def _clear(admin: Admin, flags: argparse.Namespace) -> int:
    if flags.all:
        answer = admin.call("DELETE", ROOT)
    else:
        answer = [admin.call("DELETE", f"{ROOT}/rules/{quote(one, safe='')}") for one in flags.ids]
    lines = [f"cleared {one['rule']['id']}: {one['hits']} hits" for one in answer]
    return _print(flags, answer, lines or ["there were no rules"])


def _places(admin: Admin, flags: argparse.Namespace) -> int:
    answer = admin.call("GET", f"{ROOT}/places")
    return _print(flags, answer, place_lines(answer))


def rule_lines(rules: Sequence[Any]) -> Iterable[str]:
    if not rules:
        return ["no rules: 'geminga fault set PLACE/KIND' sets one"]
    rows = [
        {
            "id": one["rule"]["id"],
            "fault": _fault(one),
            "fields": _selected(one),
            "hits": one["hits"],
            "calls": one["calls"],
            "state": _state(one),
        }
        for one in rules
    ]
    return table(COLUMNS, rows)


def place_lines(places: Any) -> Iterable[str]:
    for place, facts in places.items():
        for name, kind in facts["kinds"].items():
            yield f"{place}/{name}: {kind['text']}"
            if kind["needs"]:
                yield f"    needs {', '.join(kind['needs'])}"
            if kind["takes"]:
                yield f"    takes {', '.join(kind['takes'])}"
            if kind["commands"]:
                yield f"    commands of {place}/{name}: {', '.join(kind['commands'])}"
            if kind["operations"] not in ([], facts["operations"]):
                yield f"    operations of {place}/{name}: {', '.join(kind['operations'])}"
        if facts["operations"]:
            yield f"    operations of {place}: {', '.join(facts['operations'])}"
        for point, text in facts["points"].items():
            yield f"    point {point}: {text}"


def _fault(state: Any) -> str:
    return f"{state['rule']['place']}/{state['rule']['kind']}"


def _selected(state: Any) -> str:
    hidden = {"id", "place", "kind"}
    return " ".join(f"{key}={value}" for key, value in state["rule"].items() if key not in hidden) or "all"


def _state(state: Any) -> str:
    if state["ended"]:
        return f"ended by its {state['ended']}"
    return "in force" if state["leftMs"] < 0 else f"in force for {state['leftMs'] / 1000:.1f} s"


def _described(state: Any) -> str:
    return f"{_fault(state)} {_selected(state)}: {_state(state)}"


def _print(flags: argparse.Namespace, answer: Any, lines: Iterable[str]) -> int:
    print(json.dumps(answer) if flags.json else "\n".join(lines))
    return EXIT_OK


_ACTIONS = {"set": _set, "list": _list, "clear": _clear, "places": _places}
