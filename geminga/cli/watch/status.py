"""`geminga status`: what runs, where its data are, how full, what is wrong; stopped ones as well."""

from __future__ import annotations

import argparse
import json
import shlex
import socket
from collections.abc import Callable, Sequence
from typing import Any

from geminga.cli.arguments.access import reading_advice
from geminga.cli.arguments.data_directory import default_data_dir, named, no_directory
from geminga.cli.arguments.options import DEFAULT_WEB_URL, counted, default_web_url
from geminga.cli.arguments.parser import EXIT_FAILED, EXIT_OK, Parser
from geminga.cli.client.addresses import (
    SERVICE_PORT,
    NotAnAddress,
    process_at,
    service_url,
    standalone,
    web_url,
    wrong_scheme,
)
from geminga.cli.client.errors import ClientError
from geminga.cli.figures.rows import rows
from geminga.cli.figures.scrape import scrape
from geminga.cli.show.numbers import age_text, bytes_text, count_text, rate_text, share_text
from geminga.cli.show.output import show_json, show_lines, style, terminal_width
from geminga.cli.show.table import GAP, pairs
from geminga.cli.show.text import escaped
from geminga.cli.watch import places
from geminga.units import time_text

EXIT_STOPPED = 3
"""Nothing is wrong, but no broker runs; as service managers have it."""
SECONDS_MAX = 30
SUMMED = (
    "rate_in",
    "rate_out",
    "backlog",
    "delayed",
    "overdue",
    "unread",
    "unacked",
    "producers",
    "consumers",
    "storage_bytes",
)
NAMED_MAX = 3
"""Topics that are named in a line about several."""


def parser(kind: type[Parser]) -> Parser:
    made = kind(
        prog="geminga status",
        description="Say what runs, where its data are, how full the disk is and what is wrong. "
        "Exit code 0: a broker runs and is well; 1: something is wrong; 3: no broker runs.",
    )
    add = made.add_argument
    add(
        "--data-dir",
        type=named,
        metavar="DIR",
        help=f"look at this data directory (default: {default_data_dir()})",
    )
    add("--url", help=f"look at the broker at this address (default: as other commands, {DEFAULT_WEB_URL})")
    add("--json", action="store_true", help="print all of it as JSON")
    return made


def run(kind: type[Parser], arguments: Sequence[str]) -> int:
    """The whole command; returns its exit code."""
    made = parser(kind)
    flags = made.parse_strictly(arguments)
    try:
        found = _look(flags)
    except NotAnAddress as error:
        made.error(str(error))
    if flags.json:
        show_json(found)
    else:
        show_lines(described(found))
    if found["wrong"]:
        return EXIT_FAILED
    return EXIT_OK if found["running"] else EXIT_STOPPED


def _look(flags: argparse.Namespace) -> dict[str, Any]:
    """Of the directory that was named, else of the broker at the address, else of the default directory."""
    found: dict[str, Any] = {"running": False, "wrong": []}
    web, place = _find(flags, found)
    if place is not None:
        _tell_place(found, place)
    if web is not None:
        found["running"] = True
        _tell_broker(found, web)
    return found


def _find(flags: argparse.Namespace, found: dict[str, Any]) -> tuple[str | None, places.Place | None]:
    """The admin address of the broker that runs, and its data directory, as far as either is known. Raises
    `NotAnAddress`.
    """
    wrong: list[str] = found["wrong"]
    if flags.data_dir is None:
        asked = flags.url or default_web_url()
        try:
            web = web_url(asked)
            _get(web, "/admin/v2/brokers/version")
        except NotAnAddress:
            raise
        except ClientError as error:
            if flags.url is not None or asked != DEFAULT_WEB_URL:
                if _nothing_listens(asked):
                    found["asked_url"] = asked
                else:
                    found["running"] = None
                    wrong.append(str(error))
                return None, None
        else:
            pid = process_at(int(web.rpartition(":")[2])) if web.rpartition(":")[2].isdigit() else None
            directory = None if pid is None else places.data_directory_of(pid)
            return web, None if directory is None else places.look(directory)
    else:
        found["start_with"] = standalone(f"--data-dir {shlex.quote(flags.data_dir)}")
    place = places.look(flags.data_dir or default_data_dir())
    if place.is_served:
        for port in places.ports_of(place.pid) if place.pid is not None else ():
            candidate = f"http://127.0.0.1:{port}"
            try:
                _get(candidate, "/admin/v2/brokers/version")
            except ClientError:
                continue
            return candidate, place
        wrong.append(f"{place.path} is held by process {place.pid or '?'}, whose admin API does not answer")
    return None, place


def _nothing_listens(url: str) -> bool:
    from urllib.parse import urlsplit

    parts = urlsplit(url if "://" in url else f"pulsar://{url}")
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme, SERVICE_PORT)
    try:
        socket.create_connection((parts.hostname or "", port), timeout=SECONDS_MAX).close()
    except OSError as error:
        return isinstance(error, ConnectionRefusedError)
    return False


def _get(web: str, path: str) -> bytes:
    """The answer's body. Raises `ClientError`."""
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import urlopen

    try:
        with urlopen(web + path, timeout=SECONDS_MAX) as response:
            body: bytes = response.read()
    except HTTPError as error:
        body = error.read()
        if error.code != 503:
            raise ClientError(f"{web}{path}: {error.code} {error.reason}") from None
    except (OSError, HTTPException) as error:
        raise ClientError(f"{web}: {wrong_scheme(web, error) or getattr(error, 'reason', error)}") from None
    return body


def _tell_place(found: dict[str, Any], place: places.Place) -> None:
    found["data_directory"] = place.path
    if place.is_served is None:
        found["running"] = None
    found["exists"] = place.exists
    if place.pid is not None:
        found["pid"] = place.pid
        found["uptime_s"] = places.uptime_s(place.pid)
    if place.exists:
        found["bytes"] = place.bytes_by_part
        found["files"] = place.files
    found["file_system_bytes"], found["free_bytes"] = place.file_system_bytes, place.free_bytes
    wrong: list[str] = found["wrong"]
    if (in_the_way := no_directory(place.path)) is not None:
        found["not_a_directory"] = in_the_way
        wrong.append(f"{in_the_way} is not a directory; name another data directory with --data-dir")
    if place.exists and not place.is_data_directory and place.files:
        wrong.append(f"{place.path} has files but is no data directory of Geminga")
    if place.refusal is not None:
        found["unreadable"] = place.refusal.filename
        reason = f"{place.refusal.filename} cannot be read: {place.refusal.strerror}."
        wrong.append(" ".join([reason, *reading_advice(place.refusal)]))
    if place.share_full >= places.FULL:
        wrong.append(
            f"the file system of {place.path} is {place.share_full * 100:.0f} % full: "
            f"{bytes_text(place.free_bytes)} are free"
        )
    if place.index_damaged:
        wrong.append(
            f"a broker found its index damaged; 'geminga bookie rebuild-index --data-dir "
            f"{shlex.quote(place.path)}' rebuilds it, stopped"
        )


def _tell_broker(found: dict[str, Any], web: str) -> None:
    wrong: list[str] = found["wrong"]
    found["web_url"] = web
    try:
        found["service_url"] = service_url(web)
        found["version"] = _get(web, "/admin/v2/brokers/version").decode(errors="replace").strip('"')
        _tell_health(found, web)
        _tell_clock(found, web)
        seen = scrape(web)
    except ClientError as error:
        wrong.append(str(error))
        return
    topics = rows(seen)
    found |= {key: seen.broker[key] for key in sorted(seen.broker)}
    # A Pulsar tells nothing of topics that it has not loaded.
    found["topics"] = int(found.pop("topics_stored", len(topics)))
    found["topics_loaded"] = int(found.get("topics_loaded", len(topics)))
    for key in SUMMED:
        found[key] = sum(row.get(key) or 0 for row in topics)
    _tell_topics(found, topics)


def _tell_health(found: dict[str, Any], web: str) -> None:
    try:
        report = json.loads(_get(web, "/geminga/health"))
    except (ClientError, ValueError):
        answer = _get(web, "/admin/v2/brokers/health").decode(errors="replace")
        if answer != "ok":
            found["wrong"].append(f"health: {answer[:200]}")
        return
    found["wrong"] += [*report.get("reasons", ()), *report.get("losses", ())]
    found["round_trip_ms"] = report.get("round_trip_ms")


def _tell_clock(found: dict[str, Any], web: str) -> None:
    """Nothing of a Pulsar, nor of a broker that shows its clock to operators only."""
    from geminga.cli.admin.admin_http import Admin, RequestFailed

    try:
        report = Admin(web, seconds_max=SECONDS_MAX).call("GET", "/geminga/clock")
        found["clock"] = report["clock"]
        found["clock_ms"], found["clock_ahead_ms"] = report["now_ms"], report["now_ms"] - report["wall_ms"]
    except (RequestFailed, KeyError, TypeError):
        return


def _tell_topics(found: dict[str, Any], topics: list[dict[str, Any]]) -> None:
    """What a person would want to know of them; none of it makes the broker unwell."""
    notes = []
    if unread := int(found.get("topics_unread", 0)):
        notes.append(
            f"the figures of {counted(unread, 'topic')} are not known yet: the broker has just started"
        )
    waiting = [row for row in topics if row["unserved"]]
    if waiting:
        notes.append(f"a backlog without a consumer: {_named(waiting, 'unserved')}")
    blocked = [row for row in topics if row["blocked"]]
    if blocked:
        notes.append(f"consumers wait, as too much is not acknowledged: {_named(blocked)}")
    kept = [row for row in topics if row["kept_bytes"]]
    if kept:
        notes.append(
            "all messages are kept for compaction, which this broker does not have: "
            f"{_named(kept, 'kept_bytes', bytes_text)}; 'geminga topics unsubscribe TOPIC -s __compaction' "
            "gives them up; where a compaction threshold asks for that, remove the threshold first"
        )
    found["notes"] = notes


def _named(
    found: list[dict[str, Any]], key: str = "backlog", as_text: Callable[[float], str] = count_text
) -> str:
    """The topics with the most of `key`, which is shown beside their names."""
    largest = sorted(found, key=lambda row: -row[key])
    names = ", ".join(f"{row['shown']} ({as_text(row[key])})" for row in largest[:NAMED_MAX])
    rest = len(largest) - NAMED_MAX
    return f"{names} and {rest} more" if rest > 0 else names


def described(found: dict[str, Any]) -> list[str]:
    """All of it for a person."""
    width, look = terminal_width(), style()
    lines: list[str] = []
    if found["running"]:
        version = found.get("version", "")
        lines.append(f"a broker runs ({version})" if version else "a broker runs")
    elif found["running"] is None:
        lines.append("whether a broker runs cannot be told")
    else:
        where = f"; nothing listens at {found['asked_url']}" if "asked_url" in found else ""
        advice = f"; start one: {found.get('start_with') or standalone()}"
        lines.append(f"no broker runs{where}{'' if 'not_a_directory' in found else advice}")
    known: list[tuple[str, str]] = []
    if "service_url" in found:
        known += [("clients", found["service_url"]), ("admin API", found["web_url"])]
    if "pid" in found:
        known.append(("process", f"{found['pid']}, up {age_text((found['uptime_s'] or 0) * 1000)}"))
    if found.get("clock") == "virtual":
        ahead = _ahead_text(found["clock_ahead_ms"])
        known.append(("clock", f"virtual, shows {time_text(found['clock_ms'])}, {ahead}"))
    if "memory_bytes" in found:
        budget = f" of {bytes_text(found['memory_budget_bytes'])}" if "memory_budget_bytes" in found else ""
        known.append(("memory", f"{bytes_text(found['memory_bytes'])}{budget}"))
    if "topics" in found:
        known += _traffic(found)
    if "data_directory" in found:
        known += _places(found)
    longest = max((len(name) for name, _ in known), default=0) + len(GAP)
    lines += [line for pair in pairs(known) for line in _wrapped(pair, longest, width)]
    lines += [
        line for note in found.get("notes", ()) for line in _wrapped(f"note: {escaped(note)}", 6, width)
    ]
    for problem in found["wrong"]:
        line = escaped(f"wrong: {problem}")
        lines.append(f"{look.alarm}{line}{look.end}" if look.alarm else line)
    if found["running"] and not found["wrong"]:
        lines.append("nothing is wrong")
    return lines


def _ahead_text(ahead_ms: int) -> str:
    """Of a virtual clock: it goes on as the machine's does, and only a move sets it ahead."""
    ahead_s = round(ahead_ms / 1000)
    if ahead_s <= 0:
        return "not ahead of the machine's"
    return f"{age_text(ahead_s * 1000)} ahead of the machine's; 'geminga clock' moves it"


def _wrapped(line: str, indent: int, width: int | None) -> list[str]:
    """A line in as many as a terminal needs, so that nothing of it is lost."""
    if width is None:
        return [line]
    import textwrap

    return textwrap.wrap(line, max(width, indent + 20), subsequent_indent=" " * indent)


def _traffic(found: dict[str, Any]) -> list[tuple[str, str]]:
    per_second = f"{rate_text(found['rate_in'])}/s in, {rate_text(found['rate_out'])}/s out"
    clients = f"{counted(found['producers'], 'producer')}, {counted(found['consumers'], 'consumer')}"
    if "connections" in found:
        clients += f", {count_text(found['connections'])} connections"
    backlog = f"{count_text(found['backlog'])} {'entry' if found['backlog'] == 1 else 'entries'}"
    if found["delayed"]:
        backlog += f", {count_text(found['delayed'])} of them delayed"
        if found["overdue"]:
            backlog += f" and {count_text(found['overdue'])} of these overdue"
    if found["unread"]:
        backlog += f"; {count_text(found['unread'])} not read yet, any may be delayed"
    loaded = f"{found['topics']}, {found['topics_loaded']} loaded"
    return [
        ("topics", f"{loaded}; {bytes_text(found['storage_bytes'])}"),
        ("traffic", per_second),
        ("connected", clients),
        ("backlog", backlog),
    ]


def _missing_text(found: dict[str, Any]) -> str:
    return " (not a directory)" if "not_a_directory" in found else " (not there yet)"


def _places(found: dict[str, Any]) -> list[tuple[str, str]]:
    known = [("data", found["data_directory"] + ("" if found["exists"] else _missing_text(found)))]
    if found["exists"]:
        sizes = found["bytes"]
        parts = ", ".join(f"{part} {bytes_text(size)}" for part, size in sizes.items() if size)
        least = "at least " if "unreadable" in found else ""
        known.append(("on disk", f"{least}{bytes_text(sum(sizes.values()))}{parts and f': {parts}'}"))
    whole, free = found["file_system_bytes"], found["free_bytes"]
    full = share_text(whole - free, whole)
    known.append(("disk", f"{bytes_text(free)} free of {bytes_text(whole)}, {full} full"))
    return known
