"""Random logs in which anything may happen, audited and replayed one event after the other."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from geminga.pipeline.audit.audit import audit_events, audit_logs
from geminga.pipeline.audit.events import SCHEMA, from_arrow, is_constant
from geminga.pipeline.audit.logs import Log, plan, read
from geminga.pipeline.audit.report import WRONG
from geminga.pipeline.audit.settings import AuditSettings

Row = dict[str, Any]
Place = tuple[str, int, int, int]
START_MS = 1_700_000_040_000


def random_log(draw: random.Random) -> list[list[Row]]:
    """Pieces of a log, in the order of time."""
    rows: list[Row] = []
    messages: dict[Place, Row] = {}
    now = START_MS
    for _ in range(draw.randrange(50, 300)):
        now += draw.choice((1, 1, 5, 700, 20_000))
        chance = draw.random()
        if chance < 0.4 or not messages:
            entry_id = draw.choice((draw.randrange(40), 2**31 - draw.randrange(1, 5)))
            place = draw.choice("tu"), draw.choice((3, 2**33)), entry_id, draw.choice((0, 1, 3))
            if place in messages:
                continue
            row: Row = dict(zip(("topic", "ledger_id", "entry_id", "batch_index"), place, strict=True))
            row["publish_time_ms"] = now - draw.randrange(3)
            if draw.random() < 0.3:
                row["deliver_at_ms"] = now + draw.randrange(-5, 100_000)
            messages[place] = row
            if draw.random() < 0.95:
                rows.append(row | {"kind": "published", "time_ms": now})
            continue
        names = {"subscription": draw.choice("ab"), "client": draw.choice("xy"), "time_ms": now}
        if chance < 0.9:
            more = {"redelivery_count": draw.choice((0, 0, 0, 1)), "key": draw.choice(("k", "l"))}
            rows.append(draw.choice(list(messages.values())[-12:]) | names | more | {"kind": "dispatched"})
        elif chance < 0.95:
            rows.append(draw.choice(list(messages.values())) | names | {"kind": "acked"})
        elif chance < 0.99:
            rows.append(names | {"kind": "released", "topic": draw.choice("tu")})
        else:
            rows.append({"kind": "opened", "time_ms": now})
    cuts = sorted(draw.randrange(len(rows) + 1) for _ in range(draw.randrange(4)))
    return [rows[a:b] for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True) if a < b]


class Subscription:
    def __init__(self) -> None:
        self.seen: set[Place] = set()
        self.delivered: set[Place] = set()
        self.excused: set[Place] = set()
        self.acked: set[Place] = set()
        self.held: dict[str, dict[Place, tuple[int, int]]] = defaultdict(dict)
        """By client what it was given last, and when: session and minute."""
        self.lanes: dict[Any, Place] = {}
        self.session = 0


class Replay:
    """The rules of an audit, for one event after the other."""

    def __init__(self, rows: list[Row], settings: AuditSettings) -> None:
        self.settings = settings
        self.counts: Counter[Any] = Counter()
        self.where: set[Any] = set()
        self.again: set[Any] = set()
        self.subscriptions: dict[tuple[str, str], Subscription] = defaultdict(Subscription)
        self.published = {place_of(row): row for row in rows if row["kind"] == "published"}
        for row in rows:
            if row.get("subscription"):
                self.subscriptions[row["topic"], row["subscription"]].session = 0
        for row in rows:
            self.take(row)
        self.where = {
            (what, *place)
            for what, *place in self.where
            if what not in ("early", "late", "reordered") or tuple(place) not in self.again
        }
        self.end(max(row["time_ms"] for row in rows if row["kind"] in ("published", "dispatched", "acked")))

    def take(self, row: Row) -> None:
        if row["kind"] == "opened":
            for own in self.subscriptions.values():
                own.excused |= own.seen
                own.session += 1
        elif row["kind"] != "published":
            own = self.subscriptions[row["topic"], row["subscription"]]
            if row["kind"] == "released":
                own.excused |= set(own.held.pop(row["client"], {})) - own.acked
                own.session += 1
            elif row["kind"] == "acked":
                own.acked.add(place_of(row))
            else:
                self.deliver(own, row)

    def deliver(self, own: Subscription, row: Row) -> None:
        place, settings = place_of(row), self.settings
        if place not in self.published and any(topic == row["topic"] for topic, *_ in self.published):
            self.note("unknown", row)
        if not row["redelivery_count"]:
            if place in own.seen:
                self.again.add((row["subscription"], *place))
            if place in own.seen - own.excused:
                self.note("duplicated", row)
                self.counts[row["topic"], row["subscription"], row["time_ms"] // 60_000, "duplicated"] += 1
            deliver_at_ms = row.get("deliver_at_ms", 0)
            delayed = deliver_at_ms > row["publish_time_ms"]
            late_ms = row["time_ms"] - (deliver_at_ms if delayed else row["publish_time_ms"])
            if delayed and late_ms < -settings.early_ms:
                self.note("early", row)
            if late_ms > settings.late_ms:
                self.note("late", row)
            if not delayed:
                name = {"client": row["client"], "key": row["key"], "subscription": ""}[settings.order]
                reached = own.lanes.get((name, own.session), place)
                if place < reached:
                    self.note("reordered", row)
                own.lanes[name, own.session] = max(place, reached)
            own.excused.discard(place)
            own.seen.add(place)
        own.delivered.add(place)
        now = own.session, row["time_ms"] // 60_000
        for held in own.held.values():
            if held.get(place, now) < now:
                del held[place]
        own.held[row["client"]][place] = now

    def end(self, until_ms: int) -> None:
        for (topic, name), own in self.subscriptions.items():
            for place, row in self.published.items():
                if place[0] != topic or place in own.delivered:
                    continue
                due_ms = max(row["time_ms"], row.get("deliver_at_ms", 0))
                what = "pending" if due_ms + self.settings.settle_ms > until_ms else "lost"
                self.counts[topic, name, row["time_ms"] // 60_000, what] += 1
                if what == "lost":
                    self.note(what, row | {"subscription": name})

    def note(self, what: str, row: Row) -> None:
        self.where.add((what, row["subscription"], *place_of(row)))


def place_of(row: Row) -> Place:
    return row["topic"], row["ledger_id"], row["entry_id"], row["batch_index"]


@pytest.mark.parametrize("order", ["client", "key", "subscription"])
def test_an_audit_finds_what_a_replay_finds(order: Any) -> None:
    draw = random.Random(order)
    kinds: Counter[str] = Counter()
    settings = AuditSettings(settle_ms=3_000, early_ms=10, late_ms=2_000, order=order)
    for _ in range(60):
        pieces = random_log(draw)
        events = [from_arrow(pa.Table.from_pylist(rows, SCHEMA), name="test") for rows in pieces]
        report = audit_events(events, settings)
        replay = Replay([row for piece in pieces for row in piece], settings)
        found = {
            (what, subscription, topic, *place)
            for what in WRONG
            for topic, subscription, *place in report.positions(what)
        }
        assert found == replay.where
        assert +replay.counts == {
            (row["topic"], row["subscription"], int(row["minute"].timestamp()) // 60, what): row[what]
            for row in report.minutes.to_pylist()
            for what in ("lost", "duplicated", "pending")
            if row[what]
        }
        kinds.update(one[0] for one in replay.where)
    assert set(kinds) == set(WRONG)


@pytest.mark.parametrize("order", ["client", "key"])
def test_what_a_footer_tells_need_not_be_read(order: Any, tmp_path: Path) -> None:
    """Files by kind or by topic, of which columns are left out, tell what the same events in memory tell."""
    draw = random.Random(order)
    settings = AuditSettings(settle_ms=3_000, early_ms=10, late_ms=2_000, order=order)
    left_out = 0
    for number in range(20):
        rows = [row for piece in random_log(draw) for row in piece]
        divided: dict[str, list[Row]] = defaultdict(list)
        for row in rows:
            name = row["kind"] if number % 2 else f"{row.get('topic')} {row.get('subscription')}"
            divided[name].append(row | {"batch_size": 1})
        directory = tmp_path / str(number)
        directory.mkdir()
        tables = [pa.Table.from_pylist(divided[name], SCHEMA) for name in sorted(divided)]
        for place, table in enumerate(tables):
            pq.write_table(table, directory / f"{place}.parquet", row_group_size=draw.choice((7, 1000)))
        report = audit_logs([Log(str(directory))], settings)
        expected = audit_events([from_arrow(table, name="test") for table in tables], settings)
        assert report.totals.equals(expected.totals)
        assert report.minutes.equals(expected.minutes)
        assert [list(report.positions(what)) for what in WRONG] == [
            list(expected.positions(what)) for what in WRONG
        ]
        left_out += sum(is_constant(read(piece).topic) for piece in plan([Log(str(directory))]))
    assert left_out
