"""What `geminga delayed buckets` prints of answers."""

from __future__ import annotations

from typing import Any

import pytest

from geminga.cli.admin.delayed_text import AT_ONCE, NO_BUCKET, bucket_lines, summary_lines

NOON_MS = 1_795_348_800_000
"""2026-11-22 12:00:00.000Z"""


def part(first_due_ms: int, last_due_ms: int) -> dict[str, Any]:
    segment = {"isLoaded": False}
    return {
        "state": "sealed",
        "partition": None,
        "range": "2:100000-2:149999",
        "ledgerId": 5,
        "messages": 50_000,
        "isEstimated": False,
        "notRead": 0,
        "why": "",
        "rowsOnDisk": 50_000,
        "rowsInMemory": 0,
        "bytes": 157_695,
        "firstDueMs": first_due_ms,
        "lastDueMs": last_due_ms,
        "segments": [segment] * 22,
    }


def lines_of(*parts: dict[str, Any], holds_back: bool = True) -> list[str]:
    return list(bucket_lines(parts, keeps_buckets=True, holds_back=holds_back))


def test_a_day_that_all_are_due_on_is_said_once_and_rows_fit_120_columns() -> None:
    head, row, total = lines_of(part(NOON_MS, NOON_MS + 1778))
    assert head.endswith("  DUE ON 2026-11-22")
    assert row.endswith("  12:00:00.000Z to 12:00:01.778Z")
    assert total == "messages that wait: 50000"
    assert max(len(head), len(row)) <= 120


def test_days_are_in_the_rows_where_there_are_several() -> None:
    day_ms = 86_400_000
    head, first, second, _ = lines_of(part(NOON_MS, NOON_MS), part(NOON_MS, NOON_MS + day_ms))
    assert head.endswith("  DUE")
    assert first.endswith("2026-11-22 12:00:00.000Z to 2026-11-22 12:00:00.000Z")
    assert second.endswith("2026-11-22 12:00:00.000Z to 2026-11-23 12:00:00.000Z")


def test_why_there_is_no_bucket() -> None:
    growing = part(NOON_MS, NOON_MS) | {"state": "growing", "ledgerId": None, "segments": []}
    assert lines_of()[-1] == lines_of(growing)[-1] == NO_BUCKET
    assert lines_of(growing | {"state": "due"})[-1] == "messages that wait: 50000", "they were in one"
    assert lines_of(holds_back=False)[-1] == AT_ONCE


@pytest.mark.parametrize(
    ("due", "shown"),
    [(0, "2026-12-24 18:00:00.007Z"), (2, "now, since 2026-12-24 18:00:00.007Z or before")],
)
def test_what_is_due_next(due: int, shown: str) -> None:
    answer = {
        "messages": 3, "due": due, "backlog": 3, "pending": 0, "toBeSentAgain": 0, "unread": 0, "notRead": [],
        "isBeingRead": False, "nextDueMs": 1_798_135_200_007, "indexBytes": 9, "isShared": True,
        "keepsBuckets": False, "partitions": 0, "holdsBack": True,
    }  # fmt: skip
    assert f"next due            {shown}" in list(summary_lines(answer))
