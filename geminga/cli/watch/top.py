"""`geminga top`: topics by rate or backlog, live; one topic's subscriptions and consumers."""

from __future__ import annotations

import argparse
import queue
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from geminga.cli.admin.admin_http import Admin, RequestFailed, topic_path
from geminga.cli.arguments.options import add_web_url, duration_ms, positive
from geminga.cli.arguments.parser import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, Parser
from geminga.cli.client.addresses import web_url
from geminga.cli.client.errors import ClientError
from geminga.cli.figures.rows import COLUMNS, SORTS, in_order, public, rows
from geminga.cli.figures.scrape import Scrape, scrape
from geminga.cli.show.output import show_json, show_lines, style
from geminga.cli.show.table import table
from geminga.cli.watch.terminal import Ended, Terminal
from geminga.cli.watch.view import View, Wish, topic_lines
from geminga.clock import RealClock
from geminga.errors import GemingaError, InvalidName
from geminga.names import TopicName

SHARE = 10
"""A round takes at least so many times as long as a page of metrics took: looking must not be the load."""
SORT_NAMES = {"in": "rate_in", "out": "rate_out", "storage": "storage_bytes", "name": "topic"}


def parser(kind: type[Parser]) -> Parser:
    made = kind(
        prog="geminga top",
        description="Show topics by rate or backlog, live; in a pipe one plain table. "
        "A backlog is counted in entries: a batch is one.",
    )
    add = made.add_argument
    add("topic", nargs="?", help="look into this topic at once")
    add(
        "--sort",
        choices=[_name_of(key) for key in SORTS],
        default="in",
        help="what comes first (default: in)",
    )
    add(
        "--interval",
        "-i",
        type=duration_ms,
        default=2000,
        metavar="TIME",
        help="between two looks (default: 2s)",
    )
    add("-n", "--count", type=positive, metavar="N", help="in a pipe: at most so many topics")
    add("--all", action="store_true", help="topics of the broker itself as well")
    add("--json", action="store_true", help="print one snapshot as JSON")
    add_web_url(made)
    return made


def _name_of(key: str) -> str:
    return next((name for name, own in SORT_NAMES.items() if own == key), key)


def run(kind: type[Parser], arguments: Sequence[str]) -> int:
    """The whole command; returns its exit code."""
    flags = parser(kind).parse_strictly(arguments)
    sort = SORT_NAMES.get(flags.sort, flags.sort)
    try:
        topic = None if flags.topic is None else str(TopicName.parse(flags.topic))
        web = web_url(flags.url)
        if flags.json or not (sys.stdin.isatty() and sys.stdout.isatty()):
            _snapshot(web, topic, sort, flags)
            return EXIT_OK
        return _live(web, View(web, sort, topic), flags)
    except (ClientError, RequestFailed, InvalidName) as error:
        print(f"geminga top: {error}", file=sys.stderr)
        return EXIT_FAILED


def _snapshot(web: str, topic: str | None, sort: str, flags: argparse.Namespace) -> None:
    if topic is not None:
        stats = topic_stats(web, topic)
        if flags.json:
            show_json(stats)
            return
        show_lines(topic_lines(topic, stats))
        return
    found = in_order(rows(scrape(web), with_system=flags.all), sort)[: flags.count]
    if flags.json:
        show_json([public(row) for row in found])
    else:
        show_lines(table(COLUMNS, found))


def topic_stats(web: str, topic: str) -> Mapping[str, Any]:
    """Of a topic, partitioned or not. Raises `RequestFailed`."""
    admin = Admin(web)
    path = topic_path(topic)
    partitions = admin.call("GET", f"{path}/partitions").get("partitions", 0)
    found: Mapping[str, Any] = admin.call("GET", f"{path}/{'partitioned-stats' if partitions else 'stats'}")
    return found


class _Seen(NamedTuple):
    topic: str | None
    scrape: Scrape | None
    stats: Mapping[str, Any] | None
    at_s: float
    problem: str


class _Looking:
    """Looks in a thread of its own, so that keys are answered at once. One look at a time."""

    def __init__(self, web: str, terminal: Terminal) -> None:
        self.seen: queue.SimpleQueue[_Seen] = queue.SimpleQueue()
        self._wanted: queue.Queue[str | None] = queue.Queue(maxsize=1)
        self._clock = RealClock()
        self._web = web
        self._terminal = terminal
        threading.Thread(target=self._run, name="looking", daemon=True).start()

    def look(self, topic: str | None) -> None:
        """At this topic, or at all; nothing if a look waits already."""
        try:
            self._wanted.put_nowait(topic)
        except queue.Full:
            pass

    def _run(self) -> None:
        while True:
            topic = self._wanted.get()
            found, stats, problem = None, None, ""
            at_s = self._clock.monotonic_s()
            try:
                if topic is None:
                    found = scrape(self._web)
                else:
                    stats = topic_stats(self._web, topic)
            except (GemingaError, ValueError) as error:
                problem = str(error)
            self.seen.put(_Seen(topic, found, stats, at_s, problem))
            self._terminal.wake()


def _live(web: str, view: View, flags: argparse.Namespace) -> int:
    clock = RealClock()
    try:
        with Terminal() as terminal:
            looking = _Looking(web, terminal)
            looking.look(view.topic)
            before: Scrape | None = None
            is_waiting, due_s = True, clock.monotonic_s()
            while True:
                width, height = terminal.size()
                terminal.draw(view.lines(width, height, style()))
                left_s = None if is_waiting or view.is_paused else max(0.0, due_s - clock.monotonic_s())
                wishes = [view.press(key) for key in terminal.wait(left_s)]
                if Wish.QUIT in wishes:
                    return EXIT_OK
                while not looking.seen.empty():
                    seen = looking.seen.get()
                    before = _take_in(view, seen, before, flags)
                    pause_s = flags.interval / 1000
                    if seen.scrape is not None:
                        pause_s = max(pause_s, SHARE * seen.scrape.took_s)
                    is_waiting, due_s = False, clock.monotonic_s() + pause_s
                is_due = not view.is_paused and clock.monotonic_s() >= due_s
                if Wish.LOOK in wishes or (is_due and not is_waiting):
                    looking.look(view.topic)
                    is_waiting = True
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Ended as ended:
        return 128 + ended.number


def _take_in(view: View, seen: _Seen, before: Scrape | None, flags: argparse.Namespace) -> Scrape | None:
    """Show what was seen; the look that the next rates are counted from."""
    if seen.problem:
        view.failed(seen.problem)
    elif seen.scrape is not None:
        view.saw_topics(rows(seen.scrape, before, with_system=flags.all), seen.scrape.broker)
        return seen.scrape
    elif seen.stats is not None and seen.topic is not None:
        view.saw_topic(seen.topic, seen.stats, seen.at_s)
    return before
