"""`geminga clock now`: lines for what the broker reports."""

from __future__ import annotations

from typing import Any

import pytest

from geminga.cli.admin.clock import print_report

REPORT = {"clock": "real", "now_ms": 1_800_000_000_000, "wall_ms": 1_800_000_000_000}


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ({"next_due_ms": None, "unread_topics": 0, "unread_entries": 0}, "-"),
        ({"next_due_ms": None}, "-"),
        (
            {"next_due_ms": None, "unread_topics": 2, "unread_entries": 0},
            "not known yet: the broker has just started, and still reads 2 topics",
        ),
        (
            {"next_due_ms": 1_800_000_001_000, "unread_topics": 1, "unread_entries": 5},
            "2027-01-15T08:00:01.000Z, or before: the broker has just started, and still reads 1 topic; "
            "5 unread entries may be delayed, to be read for a consumer with room",
        ),
    ],
)
def test_the_next_due_time_is_told_as_far_as_it_is_known(
    found: dict[str, Any], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_report({**REPORT, **found})
    assert capsys.readouterr().out.splitlines()[-1] == f"next due  {text}"


def test_a_clock_that_stands_says_how_it_ticks_on(capsys: pytest.CaptureFixture[str]) -> None:
    print_report({**REPORT, "clock": "virtual", "stands": True, "next_due_ms": None})
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("stands")]
    assert line.endswith("geminga clock advance 0 lets it tick on")
