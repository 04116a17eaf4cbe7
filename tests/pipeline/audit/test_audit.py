"""Audits of small logs, against what is known of them."""

from __future__ import annotations

import importlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from geminga.delivery_log.log_format import FileHead, Kind, encode_file_head, encode_segment, file_name
from geminga.errors import CorruptData
from geminga.pipeline.audit.audit import audit_events, audit_logs
from geminga.pipeline.audit.events import SCHEMA, WrongLog, from_arrow
from geminga.pipeline.audit.logs import Log
from geminga.pipeline.audit.report import WRONG, Report
from geminga.pipeline.audit.settings import AuditSettings

TOPIC = "persistent://public/default/t"
Row = dict[str, Any]
START_MS = 1_700_000_040_000
"""A full minute."""


def published(entry_id: int, at_ms: int = 0, **more: Any) -> Row:
    row = {"kind": "published", "time_ms": START_MS + at_ms, "topic": TOPIC, "ledger_id": 7}
    return row | {"entry_id": entry_id} | more


def dispatched(entry_id: int, at_ms: int = 0, **more: Any) -> Row:
    row = published(entry_id, at_ms) | {"kind": "dispatched", "subscription": "s", "client": "c"}
    return row | {"publish_time_ms": START_MS, "redelivery_count": 0} | more


def control(kind: str, at_ms: int = 0, **more: Any) -> Row:
    return {"kind": kind, "time_ms": START_MS + at_ms} | more


def table(rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist(rows, SCHEMA)


def audited(*pieces: list[Row], **settings: Any) -> Report:
    settings = {"settle_ms": 0, "late_ms": 10**9} | settings
    return audit_events([from_arrow(table(rows), name="test") for rows in pieces], AuditSettings(**settings))


def wrong(report: Report) -> dict[str, list[tuple[int, int, int]]]:
    found = {what: sorted(place[2:] for place in report.positions(what)) for what in WRONG}
    return {what: places for what, places in found.items() if places}


def total(report: Report, name: str) -> int:
    (row,) = report.totals.to_pylist()
    return int(row[name])


def test_nothing_is_wrong_with_what_came_once() -> None:
    report = audited([*(published(i) for i in range(5)), *(dispatched(i) for i in range(5))])
    assert wrong(report) == {}
    assert report.wrong == 0
    assert total(report, "published") == total(report, "dispatched") == 5


def test_lost_duplicated_and_unknown() -> None:
    report = audited(
        [published(i) for i in range(5)],
        [dispatched(0), dispatched(1), dispatched(1), dispatched(9)],
        [dispatched(1, client="d"), dispatched(2, client="d")],
    )
    assert wrong(report) == {
        "lost": [(7, 3, -1), (7, 4, -1)],
        "duplicated": [(7, 1, -1)],
        "unknown": [(7, 9, -1)],
    }
    assert total(report, "duplicated") == 2
    assert total(report, "lost") == 2


def test_a_ledger_of_which_a_subscription_got_nothing_is_lost_whole() -> None:
    rows = [published(0), published(0, ledger_id=8), dispatched(0), dispatched(0, subscription="t")]
    report = audited([*rows, dispatched(0, subscription="t", ledger_id=8)])
    assert list(report.positions("lost")) == [(TOPIC, "s", 8, 0, -1)]


def test_messages_of_a_batch_count_one_by_one() -> None:
    rows = [published(0, batch_index=i) for i in range(3)] + [dispatched(0, batch_index=i) for i in (0, 2)]
    assert wrong(audited(rows)) == {"lost": [(7, 0, 1)]}
    assert wrong(audited(rows[:1] + rows[3:4], level="entry")) == {}


def test_early_and_late_by_the_due_time() -> None:
    due = {"deliver_at_ms": START_MS + 1000}
    rows = [published(i, 0, **due) for i in range(4)]
    rows += [dispatched(0, 999, **due), dispatched(1, 1000, **due), dispatched(2, 1500, **due)]
    rows += [dispatched(3, 61_501, **due)]
    report = audited(rows, late_ms=500)
    assert wrong(report) == {"early": [(7, 0, -1)], "late": [(7, 3, -1)]}
    (row,) = report.totals.to_pylist()
    times = [row[name] for name in ("late_p50_ms", "late_p99_ms", "late_max_ms", "early_max_ms")]
    assert times == [0, 60501, 60501, 1]
    assert row["wait_max_ms"] is None
    assert [(m["dispatched"], m["late"], m["late_max_ms"]) for m in report.minutes.to_pylist()] == [
        (3, 0, 500),
        (1, 1, 60501),
    ]
    assert wrong(audited(rows, late_ms=70_000, early_ms=1)) == {}


def test_the_latest_and_the_earliest_are_exact_in_each_minute() -> None:
    due = {"deliver_at_ms": START_MS + 1000}
    waits_ms = [-30, -7, 70_001, 65_535, 65_536, 9_999_999]
    rows = [
        row for i, ms in enumerate(waits_ms) for row in (published(i, **due), dispatched(i, 1000 + ms, **due))
    ]
    report = audited(rows)
    (row,) = report.totals.to_pylist()
    assert (row["late_max_ms"], row["early_max_ms"]) == (9_999_999, 30)
    found = [(m["late_max_ms"], m["early_max_ms"]) for m in report.minutes.to_pylist() if m["dispatched"]]
    assert found == [(0, 30), (70_001, 0), (9_999_999, 0)]


def test_what_is_due_at_the_end_is_pending() -> None:
    rows = [published(0), published(1, deliver_at_ms=START_MS + 5000), dispatched(0, 4500)]
    report = audited(rows, settle_ms=1000)
    assert wrong(report) == {}
    assert total(report, "pending") == 1
    assert wrong(audited(rows, settle_ms=1000, until_ms=START_MS + 6000)) == {"lost": [(7, 1, -1)]}


def test_a_redelivery_is_no_duplicate() -> None:
    again = [dispatched(0, 1 + n, redelivery_count=n) for n in range(3)]
    report = audited([published(0), *again])
    assert wrong(report) == {}
    assert total(report, "redelivered") == 2
    assert total(report, "dispatched") == 1


@pytest.mark.parametrize("split", [False, True])
def test_what_a_consumer_left_may_come_again_once(split: bool) -> None:
    left = control("released", 10, topic=TOPIC, subscription="s", client="a")
    acked = dispatched(0, 5, client="a") | {"kind": "acked"}
    first = [published(0), published(1), published(2)]
    first += [dispatched(0, 1, client="a"), dispatched(1, 1, client="a"), dispatched(2, 2, client="b"), acked]
    again = [dispatched(i, 20, client="b") for i in range(3)]
    pieces = [[*first, left], again] if split else [[*first, left, *again]]
    # 0 was acknowledged, 2 was another consumer's; 1 may come again.
    assert wrong(audited(*pieces, order="none")) == {"duplicated": [(7, 0, -1), (7, 2, -1)]}
    twice = [*again, dispatched(1, 30, client="b")]
    assert (7, 1, -1) in wrong(audited([*first, left], twice, order="none"))["duplicated"]
    assert (7, 1, -1) in wrong(audited(first, [*again, left], order="none"))["duplicated"]


def test_a_broker_that_began_anew_may_deliver_again() -> None:
    rows = [control("opened"), published(0), dispatched(0), control("opened", 10), dispatched(0, 20)]
    report = audited(rows)
    assert wrong(report) == {}
    assert total(report, "repeated") == 1
    assert len(report.incomplete) == 1
    assert wrong(audited([*rows, dispatched(0, 30)])) == {"duplicated": [(7, 0, -1)]}


def test_what_a_subscription_did_not_have_to_get() -> None:
    place = {"topic": TOPIC, "subscription": "s", "ledger_id": 7}
    rows = [published(i) for i in range(6)] + [dispatched(3)]
    made = control("subscribed", **place, entry_id=1)
    skipped = control("skipped_up_to", 9, **place, entry_id=4)
    assert wrong(audited([*rows, made])) == {"lost": [(7, 2, -1), (7, 4, -1), (7, 5, -1)]}
    report = audited([*rows, made, skipped])
    assert wrong(report) == {"lost": [(7, 5, -1)]}
    assert total(report, "skipped") == 4
    assert wrong(audited(rows, start="first")) == {"lost": [(7, 4, -1), (7, 5, -1)]}


def test_a_subscription_that_got_nothing_lost_all() -> None:
    place = {"topic": TOPIC, "subscription": "s", "ledger_id": 7, "entry_id": -1}
    assert wrong(audited([control("subscribed", **place), published(0)])) == {"lost": [(7, 0, -1)]}


@pytest.mark.parametrize("order", ["client", "key", "subscription", "none"])
def test_order_within_a_lane_also_from_piece_to_piece(order: str) -> None:
    rows = [published(i) for i in range(10)]
    rows += [dispatched(1, 1, client="a", key="x"), dispatched(5, 2, client="b", key="x")]
    rows += [dispatched(0, 3, client="a", key="y")]
    later = [dispatched(4, 4, client="c", key="x"), dispatched(3, 5, client="b", key="z")]
    later += [dispatched(6, 6, client="b"), dispatched(2, 7, client="d", deliver_at_ms=START_MS + 7)]
    expected = {"client": [0, 3], "key": [4], "subscription": [0, 3, 4], "none": []}[order]
    for pieces in ([rows + later], [rows, later], [rows, later[:1], later[1:]]):
        found = wrong(audited(*pieces, order=order)).get("reordered", [])
        assert found == [(7, entry_id, -1) for entry_id in expected]


def test_what_is_left_of_a_batch_is_one_delivery_of_an_entry() -> None:
    batch = {"batch_size": 4}
    rows = [published(0, **batch), dispatched(0, 1, **batch), control("opened", 5)]
    rows += [dispatched(0, 9, batch_index=i, **batch) for i in (1, 3)]
    report = audited(rows)
    assert wrong(report) == {}
    assert (total(report, "dispatched"), total(report, "repeated")) == (2, 1)
    assert wrong(audited([*rows, dispatched(0, 20, **batch)])) == {"duplicated": [(7, 0, -1)]}


# -- files ------------------------------------------------------------------------------------------------


def test_logs_of_producers_and_consumers_apart(tmp_path: Path) -> None:
    made = [{k: v for k, v in published(i).items() if k != "kind"} for i in range(4)]
    got = [{k: v for k, v in dispatched(i).items() if k != "kind"} for i in range(3)]
    for name, rows in (("p.parquet", made), ("c.parquet", got)):
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / name)
    logs = [Log(str(tmp_path / "p.parquet"), "published"), Log(str(tmp_path / "c.parquet"), "dispatched")]
    assert wrong(audit_logs(logs, AuditSettings(settle_ms=0))) == {"lost": [(7, 3, -1)]}


def test_the_log_of_a_broker(tmp_path: Path) -> None:
    """Kinds, names and places as the broker writes them, in two segments; a torn end is no damage."""
    kinds = [Kind.OPENED, Kind.SUBSCRIBED, *[Kind.PUBLISHED] * 4, *[Kind.DISPATCHED] * 3]
    columns = {
        "kind": kinds,
        "time_ms": [START_MS + i for i in range(9)],
        "topic": [-1] + [0] * 8,
        "subscription": [-1, 0] + [-1] * 4 + [0] * 3,
        "client": [-1, -1] + [0] * 4 + [1] * 3,
        "ledger_id": [0] + [7] * 8,
        "entry_id": [0, 0, 0, 1, 2, 3, 1, 3, 3],
        "batch_size": [0, 0] + [5] * 7,
        "publish_time_ms": [0, 0] + [START_MS] * 7,
    }
    names = {"topics": [TOPIC], "subscriptions": ["s"], "clients": ["p", "c"]}
    first = encode_segment(0, columns, **names)
    left = {name: values[-1:] for name, values in columns.items()} | {"kind": [Kind.RELEASED]}
    second = encode_segment(1, left, **names)
    data = encode_file_head(FileHead(1, START_MS)) + first + second
    path = tmp_path / file_name(1)
    path.write_bytes(data + second[:30])
    report = audit_logs([Log(str(tmp_path))], AuditSettings(settle_ms=0))
    assert wrong(report) == {"lost": [(7, 2, -1)], "duplicated": [(7, 3, -1)]}
    assert total(report, "skipped") == 1
    path.write_bytes(data[:200] + bytes((data[200] ^ 1,)) + data[201:])
    with pytest.raises(CorruptData, match=r"deliveries-00000001\.log: offset 64"):
        audit_logs([Log(str(tmp_path))])


def test_a_truncated_or_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    rows = [published(i, i) for i in range(5000)]
    pq.write_table(table(rows), path, write_page_checksum=True)
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    with pytest.raises(CorruptData, match=r"log\.parquet"):
        audit_logs([Log(str(path))])
    at = pq.ParquetFile(pa.BufferReader(whole)).metadata
    offset = at.row_group(0).column(1).dictionary_page_offset or at.row_group(0).column(1).data_page_offset
    damaged = bytearray(whole)
    damaged[offset + 200] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(CorruptData, match=r"log\.parquet"):
        audit_logs([Log(str(path))])


def test_missing_columns_and_kinds_are_named(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    pq.write_table(table([published(0)]).drop_columns(["time_ms"]), path)
    with pytest.raises(WrongLog, match=r"log\.parquet: no column time_ms"):
        audit_logs([Log(str(path))])
    made = [published(0), dispatched(0), published(1) | {"kind": "made"}]
    pq.write_table(table(made), path, row_group_size=2)
    with pytest.raises(
        WrongLog, match=r"log\.parquet: row 2, counted from 0: unknown kind 'made'; known are"
    ):
        audit_logs([Log(str(path))])
    pq.write_table(table([published(0), published(0) | {"ledger_id": None}]), path)
    with pytest.raises(WrongLog, match=r"log\.parquet: row 1, .*without ledger_id .*--leave-out-malformed"):
        audit_logs([Log(str(path))])
    with pytest.raises(WrongLog, match=r"s3a://bucket/log\.parquet: logs are read by path, .*mount"):
        audit_logs([Log("s3a://bucket/log.parquet")])
    with pytest.raises(WrongLog, match="no such file"):
        audit_logs([Log(str(tmp_path / "none"))])


def test_malformed_events_are_left_out_where_that_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    wrong_ones = [{"entry_id": None}, {"entry_id": -7}, {"kind": "made"}, {"topic": None}, {"time_ms": None}]
    rows = [published(0), published(1), dispatched(0), *(published(9) | one for one in wrong_ones)]
    pq.write_table(table([*rows, dispatched(9) | {"subscription": None}]), path, row_group_size=4)
    report = audit_logs([Log(str(path), leaves_out=True)], AuditSettings(settle_ms=0))
    assert wrong(report) == {"lost": [(7, 1, -1)]}
    (said,) = report.incomplete
    assert said.startswith(
        f"malformed events were left out (6), such as {path}: row 3, counted from 0: an event"
    )


@pytest.mark.parametrize("days", [0.02, 365], ids=["half an hour", "a year"])
def test_one_finding_is_seen_in_the_picture(days: float) -> None:
    """In a real half an hour, or in a year that a virtual clock has passed in a second."""
    image = pytest.importorskip("matplotlib.image")
    plot = importlib.import_module("geminga.pipeline.audit.plot")
    times_ms = [round(number * days * 8_640_000) for number in range(11)]
    came = [
        dispatched(number, at_ms, publish_time_ms=START_MS + at_ms)
        for number, at_ms in enumerate(times_ms)
        if number != 5
    ]
    report = audited([*(published(number, at_ms) for number, at_ms in enumerate(times_ms)), *came])
    assert wrong(report) == {"lost": [(7, 5, -1)]}
    color = np.array([int(plot.COLORS["lost"][at : at + 2], 16) / 255 for at in (1, 3, 5)])
    pixels = image.imread(io.BytesIO(plot.png_of(report)))[:, :, :3]
    beside_the_legend = pixels[:, : pixels.shape[1] * 11 // 20]
    assert np.count_nonzero(np.abs(beside_the_legend - color).max(axis=2) < 0.02) > 500
