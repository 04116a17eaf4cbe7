"""What `geminga top` shows, and what each key does to it. Pure: rows and keys in, lines out."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any

from geminga.cli.figures.rows import COLUMNS, SORTS, in_order, live_stats, short_name
from geminga.cli.show import text
from geminga.cli.show.numbers import bytes_text, count_text, rate_text
from geminga.cli.show.table import PLAIN, Column, Style, table

TITLES = {column.key: column.title for column in COLUMNS} | {"topic": "TOPIC", "delayed": "DELAYED"}
HEAD_LINES = 3
KEYS_OF_LIST = "up/down choose  enter inside  <> sort  r reverse  / find  p pause  q quit"
KEYS_OF_TOPIC = "esc back  up/down scroll  p pause  q quit"

SUBSCRIPTION_COLUMNS = (
    Column("SUBSCRIPTION", "name", importance=9),
    Column("TYPE", "type", importance=4),
    Column("OUT/s", "msgRateOut", rate_text, importance=7),
    Column("ACK/s", "messageAckRate", rate_text, importance=3),
    Column("BACKLOG", "msgBacklog", count_text, importance=9),
    Column("DELAYED", "msgDelayed", count_text, importance=5),
    Column("UNACKED", "unackedMessages", count_text, importance=6),
    Column("CONSUMERS", "consumers", count_text, importance=7),
)
CONSUMER_COLUMNS = (
    Column("CONSUMER", "consumerName", importance=9),
    Column("SUBSCRIPTION", "subscription", importance=8),
    Column("ADDRESS", "address", importance=4),
    Column("OUT/s", "msgRateOut", rate_text, importance=7),
    Column("UNACKED", "unackedMessages", count_text, importance=8),
    Column("PERMITS", "availablePermits", count_text, importance=5),
    Column("CLIENT", "clientVersion", importance=1),
)
PRODUCER_COLUMNS = (
    Column("PRODUCER", "producerName", importance=9),
    Column("ADDRESS", "address", importance=4),
    Column("IN/s", "msgRateIn", rate_text, importance=7),
    Column("SIZE", "averageMsgSize", bytes_text, importance=5),
    Column("CLIENT", "clientVersion", importance=1),
)


class Wish(enum.Enum):
    """What a key asks of the program."""

    NOTHING = enum.auto()
    LOOK = enum.auto()
    """At the topic in `View.topic`, or at all of them."""
    QUIT = enum.auto()


class View:
    """One screen."""

    def __init__(self, where: str, sort: str = "rate_in", topic: str | None = None) -> None:
        self.topic = topic
        """The one that is looked into; None: the list."""
        self.is_paused = False
        self._problem = ""
        """Why the last look failed."""
        self._where = where
        self._sort = sort
        self._is_reversed = False
        self._find = ""
        self._is_typing = False
        self._rows: list[dict[str, Any]] | None = None
        """None: not seen yet."""
        self._stats: Mapping[str, Any] | None = None
        self._looked: tuple[Mapping[str, Any] | None, float] = None, 0.0
        self._broker: Mapping[str, float] = {}
        self._selected = ""
        self._first = 0
        self._height = 24

    # -- what was seen ---------------------------------------------------------------------------------------

    def saw_topics(self, found: list[dict[str, Any]], broker: Mapping[str, float]) -> None:
        self._problem = ""
        self._rows, self._broker = found, broker

    def saw_topic(self, topic: str, stats: Mapping[str, Any], at_s: float) -> None:
        """The answer of `stats`, or of `partitioned-stats`, and when it was asked for."""
        if topic == self.topic:
            self._problem = ""
            before, before_s = self._looked
            self._looked = stats, at_s
            self._stats = live_stats(stats, before, at_s - before_s)

    def failed(self, problem: str) -> None:
        """The last look did; what was seen before stays."""
        self._problem = problem

    # -- keys ------------------------------------------------------------------------------------------------

    def press(self, key: str) -> Wish:
        if self._is_typing:
            return self._type(key)
        if key in ("q", "ctrl-c"):
            return Wish.QUIT
        if key == "p":
            self.is_paused = not self.is_paused
            return Wish.NOTHING
        if self.topic is not None:
            return self._press_in_topic(key)
        return self._press_in_list(key)

    def _press_in_topic(self, key: str) -> Wish:
        if key in ("esc", "left", "backspace"):
            self.topic, self._stats, self._first = None, None, 0
            self._looked = None, 0.0
            return Wish.LOOK
        step = {"down": 1, "j": 1, "up": -1, "k": -1, "pgdn": self._page, "pgup": -self._page}.get(key, 0)
        self._first = max(0, self._first + step)
        return Wish.NOTHING

    def _press_in_list(self, key: str) -> Wish:
        shown = self._listed()
        at = next((number for number, row in enumerate(shown) if row["topic"] == self._selected), 0)
        steps = {
            "down": at + 1, "j": at + 1, "up": at - 1, "k": at - 1, "home": 0, "end": len(shown),
            "pgdn": at + self._page, "pgup": at - self._page,
        }  # fmt: skip
        if key in steps and shown:
            self._selected = shown[max(0, min(len(shown) - 1, steps[key]))]["topic"]
        elif key in ("enter", "right") and shown:
            self.topic, self._stats, self._first = shown[at]["topic"], None, 0
            self._selected = shown[at]["topic"]
            return Wish.LOOK
        elif key in ("<", ">", ",", "."):
            turn = 1 if key in (">", ".") else -1
            self._sort = SORTS[(SORTS.index(self._sort) + turn) % len(SORTS)]
        elif key == "r":
            self._is_reversed = not self._is_reversed
        elif key == "/":
            self._is_typing = True
        elif key == "esc":
            self._find = ""
        return Wish.NOTHING

    def _type(self, key: str) -> Wish:
        if key in ("enter", "esc", "ctrl-c"):
            self._is_typing = False
            if key != "enter":
                self._find = ""
        elif key == "backspace":
            self._find = self._find[:-1]
        elif len(key) == 1 and key.isprintable():
            self._find += key
        return Wish.NOTHING

    @property
    def _page(self) -> int:
        return max(1, self._height - HEAD_LINES - 2)

    def _listed(self) -> list[dict[str, Any]]:
        found = [row for row in self._rows or () if self._find.lower() in row["shown"].lower()]
        return in_order(found, self._sort, is_reversed=self._is_reversed)

    # -- lines -----------------------------------------------------------------------------------------------

    def lines(self, width: int, height: int, style: Style) -> list[str]:
        """Exactly `height` lines, none wider than `width` cells."""
        self._height = height
        body = (
            self._topic_lines(width, style)
            if self.topic is not None
            else self._list_lines(width, height, style)
        )
        room = max(0, height - HEAD_LINES)
        lines = [*self._head(width, style), *body[:room]]
        lines += [""] * (height - 1 - len(lines))
        keys = KEYS_OF_TOPIC if self.topic is not None else KEYS_OF_LIST
        foot = f"find: {self._find}_" if self._is_typing else keys
        return [*lines[: height - 1], text.cut_end(text.escaped(foot), width)]

    def _head(self, width: int, style: Style) -> list[str]:
        parts = ["looking ..."] if self._rows is None else _totals(self._rows)
        if "connections" in self._broker:
            parts.append(f"{count_text(self._broker['connections'])} connections")
        if "memory_bytes" in self._broker:
            parts.append(f"memory {bytes_text(self._broker['memory_bytes'])}")
        title = f"geminga top  {self._where}" + ("  PAUSED" if self.is_paused else "")
        if self._problem:
            second = text.cut_end(text.escaped(self._problem), width)
            second = f"{style.alarm}{second}{style.end}" if style.alarm else second
        else:
            second = text.cut_end("   ".join(parts), width)
        return [text.cut_end(text.escaped(title), width), second]

    def _list_lines(self, width: int, height: int, style: Style) -> list[str]:
        shown = self._listed()
        sorted_by = f"sorted by {TITLES[self._sort]}" + (" (reversed)" if self._is_reversed else "")
        found = f", only {self._find!r}" if self._find else ""
        heading = text.cut_end(text.escaped(f"{sorted_by}{found}"), width)
        if self._rows is None:
            return []
        if not shown:
            return ["", "there is no topic" if not self._find else "no topic has this in its name"]
        at = next((number for number, row in enumerate(shown) if row["topic"] == self._selected), 0)
        room = max(1, height - HEAD_LINES - 2)
        self._first = max(min(self._first, at), at - room + 1, 0)
        window = shown[self._first : self._first + room]
        lines = table(COLUMNS, window, width=width, style=style, selected=at - self._first)
        return [heading, *lines]

    def _topic_lines(self, width: int, style: Style) -> list[str]:
        if self._stats is None:
            return ["", text.cut(text.escaped(short_name(self.topic or "")), width), "looking ..."]
        lines = ["", *topic_lines(self.topic or "", self._stats, width, style)]
        room = max(1, self._height - HEAD_LINES)
        self._first = max(0, min(self._first, len(lines) - room))
        return lines[self._first :]


def _totals(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    def total(key: str) -> float:
        return sum(row.get(key) or 0 for row in rows)

    return [
        f"{count_text(len(rows))} topics",
        f"in {rate_text(total('rate_in'))}/s",
        f"out {rate_text(total('rate_out'))}/s",
        f"backlog {count_text(total('backlog'))}",
    ]


def topic_lines(
    topic: str, stats: Mapping[str, Any], width: int | None = None, style: Style = PLAIN
) -> list[str]:
    """A topic's subscriptions, consumers and producers. `width` None: nothing is cut."""
    name = text.escaped(short_name(topic))
    facts = _facts(stats)
    if width is not None:
        name, facts = text.cut(name, width), text.cut_end(facts, width)
    lines = [f"{style.heading}{name}{style.end}" if style.heading else name, facts]
    for title, columns, found in _parts_of(stats):
        lines += ["", *(table(columns, found, width=width, style=style) if found else [f"no {title}"])]
    return lines


def _facts(stats: Mapping[str, Any]) -> str:
    facts = [
        f"in {rate_text(stats.get('msgRateIn'))}/s",
        f"out {rate_text(stats.get('msgRateOut'))}/s",
        f"storage {bytes_text(stats.get('storageSize'))}",
        f"messages in {count_text(stats.get('msgInCounter'))}",
        f"out {count_text(stats.get('msgOutCounter'))}",
    ]
    kept_by = stats.get("compaction", {}).get("gemingaKeptBy")
    if kept_by:
        facts.append(f"all kept for compaction, by {kept_by}")
    partitions = (stats.get("metadata") or {}).get("partitions")
    if partitions:
        facts.insert(0, f"{partitions} partitions")
    return "   ".join(facts)


def _parts_of(stats: Mapping[str, Any]) -> list[tuple[str, Sequence[Column], list[dict[str, Any]]]]:
    """Subscriptions, consumers and publishers as rows."""
    subscriptions, consumers = [], []
    for name, one in sorted(stats.get("subscriptions", {}).items()):
        own = one.get("consumers", [])
        subscriptions.append({**one, "name": name, "consumers": len(own)})
        consumers += [{**consumer, "subscription": name} for consumer in own]
    return [
        ("subscriptions", SUBSCRIPTION_COLUMNS, subscriptions),
        ("consumers", CONSUMER_COLUMNS, consumers),
        ("producers", PRODUCER_COLUMNS, list(stats.get("publishers", []))),
    ]
