"""Stories of what brokers, producers and consumers do, as short lists of events; what an audit has to say.

Each line of a story is one event: `published 0`, `dispatched 0 to c`, ... with what is special about it by
name. A line is a millisecond later than the one before it, `after` says more. Events of one story are about a
topic of its own and an hour of its own, so that all stories can be audited together.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from geminga.pipeline.audit.settings import AuditSettings

HOUR_MS = 3_600_000
START_MS = 472_222 * HOUR_MS
SETTINGS = AuditSettings(settle_ms=0)
BY_MESSAGE = SETTINGS._replace(level="message")
Event = dict[str, Any]


def made(entry: int, **more: Any) -> Event:
    """An entry is published, in ledger 7."""
    return {"kind": "published", "entry_id": entry, "ledger_id": 7} | more


def given(entry: int, client: str = "c", **more: Any) -> Event:
    """It is dispatched to a consumer of subscription `s`, for the first time."""
    row = {"kind": "dispatched", "subscription": "s", "client": client, "entry_id": entry, "ledger_id": 7}
    return row | {"redelivery_count": 0} | more


def acked(entry: int, client: str = "c", **more: Any) -> Event:
    return given(entry, client) | {"kind": "acked"} | more


def left(client: str = "c", **more: Any) -> Event:
    return {"kind": "released", "subscription": "s", "client": client} | more


def said(kind: str, entry: int = -1, **more: Any) -> Event:
    """Of a subscription's cursor."""
    return {"kind": kind, "subscription": "s", "ledger_id": 7, "entry_id": entry} | more


def process(kind: str, **more: Any) -> Event:
    """Of the whole broker."""
    return {"kind": kind, "topic": None} | more


def batch(entry: int, size: int, kind: Any = made) -> Event:
    """A whole batch, as a broker logs it."""
    row: Event = kind(entry, batch_size=size)
    return row


class Story(NamedTuple):
    name: str
    """Kind and what happens."""
    events: list[Event] | list[list[Event]]
    """Lists: files."""
    wrong: Mapping[str, list[str]] = MappingProxyType({})
    """What is wrong, and with which entries (or entry:index)."""
    counts: Mapping[str, int] = MappingProxyType({})
    """Of the topic's totals, summed over subscriptions."""
    settings: AuditSettings = SETTINGS


DUE = 10_000
LATER: Any = {"due": DUE}
"""Of what is delayed until ten seconds after the story began."""
TICK: Any = LATER | {"early_ms": 1_000}
BATCH: Any = {"batch_size": 3}

STORIES = (
    Story("plain: all came once", [made(0), made(1), given(0), given(1)], {}, {"dispatched": 2}),
    Story("plain: one never came", [made(0), made(1), given(1)], {"lost": ["0"]}),
    Story("plain: one came twice", [made(0), given(0), given(0)], {"duplicated": ["0"]}),
    Story("plain: one that nobody published", [made(0), given(0), given(3)], {"unknown": ["3"]}),
    Story("plain: one came late", [made(0), given(0, after=1_500)], {"late": ["0"]}),
    Story("order: a consumer goes back", [made(0), made(1), given(1), given(0)], {"reordered": ["0"]}),
    Story("order: two consumers side by side", [made(0), made(1), given(1, "a"), given(0, "b")]),
    Story(
        "key order: a key goes back, another is not asked about",
        [made(0), made(1), made(2), given(2, "a", key="k"), given(1, "b", key="l"), given(0, "b", key="k")],
        {"reordered": ["0"]},
        settings=SETTINGS._replace(order="key"),
    ),
    Story(
        "nack: it comes again with a count",
        [made(0), given(0), given(0, redelivery_count=1), given(0, redelivery_count=2)],
        {},
        {"dispatched": 1, "redelivered": 2},
    ),
    Story(
        "nack: the count was lost on the way",
        [made(0), given(0), given(0, redelivery_count=1), given(0)],
        {"duplicated": ["0"]},
    ),
    Story(
        "DLQ: after three redeliveries another topic has it, and the first one acknowledged it",
        [
            made(0), *(given(0, redelivery_count=count) for count in range(4)),
            made(0, topic="DLQ", ledger_id=8), acked(0),
        ],
        {},
        {"redelivered": 3, "acked": 1, "published": 1},
    ),
    Story(
        "late subscription: it gets what is published from then on",
        [made(0), made(1), said("subscribed", 1), made(2), given(2)],
        {},
        {"skipped": 2},
    ),
    Story(
        "late subscription: what came after it was made is missing",
        [made(0), said("subscribed", 0), made(1), made(2), given(2)],
        {"lost": ["1"]},
        {"skipped": 1},
    ),
    Story(
        "late subscription: no event says when it was made",
        [made(0), made(1), given(1)],
        {},
        {"skipped": 1},
        settings=SETTINGS._replace(start="first"),
    ),
    Story(
        "seek back: what was acknowledged comes again",
        [made(0), made(1), given(0), given(1), acked(0), acked(1), said("sought"), given(0), given(1)],
        {},
        {"repeated": 2},
    ),
    Story(
        "seek back: once, not twice",
        [made(0), given(0), said("sought"), given(0), given(0)],
        {"duplicated": ["0"]},
        {"repeated": 1},
    ),
    Story(
        "seek ahead: what is left out is not lost",
        [made(0), made(1), made(2), given(0), said("sought", 1), given(2)],
        {},
        {"skipped": 1},
    ),
    Story(
        "topic made anew: its ledgers are others",
        [
            made(0), given(0), said("unsubscribed"), said("subscribed", -1, ledger_id=9),
            made(0, ledger_id=9), given(0, ledger_id=9),
        ],
    ),
    Story(
        "topic made anew: something of the new one is missing",
        [
            made(0), made(1), given(0), said("unsubscribed"), said("subscribed", -1, ledger_id=9),
            made(0, ledger_id=9), made(1, ledger_id=9), given(1, ledger_id=9),
        ],
        {"lost": ["0"]},
        {"skipped": 1},
    ),
    Story(
        "dedup: named twins send the same, the broker notes what it refused",
        [
            made(0, client="twin"), {"kind": "duplicate", "client": "twin"}, made(1, client="twin"),
            {"kind": "duplicate", "client": "twin"}, given(0), given(1),
        ],
        {},
        {"published": 2, "deduplicated": 2},
    ),
    Story(
        "dedup: the second twin's receipts are -1:-1",
        [
            [made(0, client="twin"), made(1, client="twin")],
            [made(-1, ledger_id=-1, client="twin"), made(-1, ledger_id=-1, batch_size=5, client="twin")],
            [given(0), given(1)],
        ],
        {},
        {"published": 2, "deduplicated": 2},
    ),
    Story(
        "dedup: a receipt -1:-1 does not hide what is lost",
        [made(-1, ledger_id=-1), made(0), made(1), given(1)],
        {"lost": ["0"]},
        {"deduplicated": 1},
    ),
    Story(
        "clock skew: the consumers' clock is behind",
        [[made(0), made(1, after=300)], [given(0, at=-200), given(1, at=100)]],
        {},
        {"dispatched": 2},
    ),
    Story(
        "clock skew: the broker's clock steps back",
        [made(0, at=500), given(0, at=501), made(1, at=100), given(1, at=101)],
        {},
        {"dispatched": 2},
    ),
    Story(
        "files: the same message in the notes of two consumers",
        [[made(0), made(1)], [given(0, "a")], [given(0, "b", after=50), given(1, "b")]],
        {"duplicated": ["0"]},
    ),
    Story(
        "files: one consumer goes on in a second file",
        [[made(0), made(1), given(0)], [given(1, after=9)]],
    ),
    Story(
        "files: what a consumer had comes to another one, of another file",
        [[made(0), made(1)], [given(0, "a"), given(1, "a"), left("a")], [given(1, "b", after=50)]],
        {},
        {"repeated": 1},
    ),
    Story(
        "batch indexes: one message of a batch is missing",
        [made(0, batch_index=i) for i in range(3)] + [given(0, batch_index=i) for i in (0, 2)],
        {"lost": ["0:1"]},
        settings=BY_MESSAGE,
    ),
    Story(
        "batch indexes: one message of a batch comes twice",
        [made(0, batch_index=i) for i in range(2)] + [given(0, batch_index=i) for i in (0, 1, 1)],
        {"duplicated": ["0:1"]},
        settings=BY_MESSAGE,
    ),
    Story(
        "batch index acks: the consumer leaves, another gets the rest",
        [
            batch(0, 3), batch(0, 3, given), acked(0, batch_index=1, **BATCH), left(),
            given(0, "d", batch_index=0, **BATCH), given(0, "d", batch_index=2, at_once=True, **BATCH),
        ],
        {},
        {"repeated": 1, "dispatched": 2, "acked": 0},
    ),
    Story(
        "batch index acks: all of it was acknowledged, and comes again",
        [
            batch(0, 3), batch(0, 3, given), *(acked(0, batch_index=i, **BATCH) for i in (2, 0, 1, 0)),
            left(),
            given(0, "d", **BATCH),
        ],
        {"duplicated": ["0"]},
        {"acked": 1},
    ),
    Story(
        "batch index acks: in two files, and in two sessions",
        [
            [batch(0, 3), batch(0, 3, given), acked(0, batch_index=0, **BATCH), left()],
            [
                given(0, "d", batch_index=1, after=50, **BATCH),
                given(0, "d", batch_index=2, at_once=True, **BATCH),
                acked(0, "d", batch_index=1, **BATCH), acked(0, "d", batch_index=2, **BATCH), left("d"),
                given(0, "e", **BATCH),
            ],
        ],
        {"duplicated": ["0"]},
        {"repeated": 1, "acked": 1},
    ),
    Story(
        "batch index acks: the last message is acknowledged with the whole entry",
        [
            batch(0, 3), batch(0, 3, given), acked(0, batch_index=0, **BATCH), acked(0), left(),
            given(0, "d", **BATCH),
        ],
        {"duplicated": ["0"]},
    ),
    Story(
        "consumer leaves: acknowledged ones do not come again",
        [made(0), made(1), given(0), given(1), acked(0), left(), given(0, "d"), given(1, "d")],
        {"duplicated": ["0"]},
        {"repeated": 1},
    ),
    Story(
        "consumer leaves: what another one has does not come again",
        [made(0), made(1), given(0, "a"), given(1, "b"), left("a"), given(0, "b"), given(1, "d")],
        {"duplicated": ["1"]},
        {"repeated": 1},
    ),
    Story(
        "unsubscribed: what was not delivered is not lost",
        [made(0), made(1), given(0), said("unsubscribed")],
        {},
        {"skipped": 1},
    ),
    Story(
        "expired: what was skipped is not lost, what came after it is",
        [made(0), made(1), made(2), made(3), given(0), said("skipped_up_to", 1), given(3)],
        {"lost": ["2"]},
        {"skipped": 1},
    ),
    Story(
        "unicode: names of topics, subscriptions and consumers",
        [
            made(0, topic="тема-✓"), made(1, topic="тема-✓"),
            given(0, "消費者", subscription="café ☕", topic="тема-✓"),
            given(0, "消費者", subscription="café ☕", topic="тема-✓"),
        ],
        {"duplicated": ["0"], "lost": ["1"]},
    ),
    Story(
        "restart: what was delivered before may come again once",
        [
            process("opened"), made(0), given(0), process("closed"), process("opened"), given(0, "d"),
        ],
        {},
        {"repeated": 1},
    ),
    Story(
        "restart: and not twice",
        [made(0), given(0), process("opened"), given(0, "d"), given(0, "d"), process("closed")],
        {"duplicated": ["0"]},
        {"repeated": 1},
    ),
    Story(
        "exact: a delayed message a millisecond too early",
        [made(0, **LATER), made(1, **LATER), given(0, at=DUE - 1, **LATER), given(1, at=DUE, **LATER)],
        {"early": ["0"]},
    ),
    Story(
        "tick: up to a tick early is on time, and no more",
        [
            *(made(entry, **LATER) for entry in range(3)),
            given(0, at=DUE - 1_001, **TICK), given(1, at=DUE - 1_000, **TICK), given(2, at=DUE, **TICK),
        ],
        {"early": ["0"]},
    ),
    Story(
        "tick: --early says otherwise",
        [made(0, **LATER), given(0, at=DUE - 500, **TICK)],
        {"early": ["0"]},
        settings=SETTINGS._replace(early_ms=0),
    ),
    Story(
        "precision: each subscription, and each time, has its own",
        [
            made(0, **LATER), made(1, **LATER),
            given(0, at=5_000, **LATER, early_ms=6_000), given(1, at=5_001, **LATER, early_ms=4_000),
            given(0, "d", at=9_500, subscription="exact", **LATER),
            given(1, "d", at=10_500, subscription="exact", **LATER),
        ],
        {"early": ["0", "1"]},
    ),
    Story(
        "precision: a type that does not wait",
        [made(0, **LATER), given(0, at=5, early_ms=-1, **LATER)],
        {},
        {"early": 0, "dispatched": 1},
    ),
    Story(
        "delayed: late by its due time, not by its publication",
        [
            made(0, **LATER), made(1, **LATER),
            given(0, at=DUE + 900, **LATER), given(1, at=DUE + 1_100, **LATER),
        ],
        {"late": ["1"]},
    ),
    Story(
        "virtual clock: what fell due within a step of a move is on time, what was due before it is late",
        [
            made(0, **LATER), made(1, **LATER),
            given(0, at=DUE + 5_000, **LATER, step_ms=5_001),
            given(1, at=DUE + 5_001, **LATER, step_ms=5_001),
        ],
        {"late": ["1"]},
    ),
    Story(
        "delayed: out of the topic's order is no fault",
        [made(0, **LATER), made(1), given(1), given(0, at=DUE, **LATER)],
    ),
)  # fmt: skip


def topic_of(number: int, name: str = "") -> str:
    return f"persistent://public/default/story-{number:02}{name and '-' + name}"


def files_of(number: int, story: Story) -> list[list[Event]]:
    """The story's events in files, with topics and times."""
    files = story.events if isinstance(story.events[0], list) else [story.events]
    now_ms = start_ms = START_MS + number * HOUR_MS
    whole = []
    for file in files:
        rows = []
        for event in file:
            row = dict(event)
            now_ms = start_ms + row.pop("at") if "at" in row else now_ms + row.pop("after", 1)
            now_ms -= row.pop("at_once", False)
            if "due" in row:
                row["deliver_at_ms"] = start_ms + row.pop("due")
            if "topic" not in row or row["topic"]:
                row["topic"] = topic_of(number, row.get("topic", ""))
            if row["kind"] in ("published", "dispatched"):
                row.setdefault("publish_time_ms", start_ms)
            rows.append(row | {"time_ms": now_ms})
        whole.append(rows)
    return whole
