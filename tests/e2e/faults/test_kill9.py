"""SIGKILL under load: the checker catches what it must, and the broker keeps its promises."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.faults import kill_loop
from tests.e2e.faults.kill_checker import Seen, body_of, check, parse_body

GOOD = [Seen((1, entry, -1), "a", entry) for entry in range(5)]


def at(entry: int, number: int, ledger: int = 1) -> Seen:
    return Seen((ledger, entry, -1), "a", number)


def kinds(receipts: list[Seen], stored: list[Seen], deliveries: list[Seen]) -> set[str]:
    return set(check(receipts, stored, deliveries, in_order=True).violations)


def test_a_good_run_has_no_violations() -> None:
    verdict = check(GOOD, GOOD, GOOD, in_order=True)
    assert verdict.violations == {}
    assert (verdict.receipted, verdict.stored, verdict.delivered) == (5, 5, 5)


def test_duplicates_are_counted_and_allowed() -> None:
    """A resent message is stored a second time, an unacknowledged one delivered a second time."""
    stored = [*GOOD, at(0, 3, ledger=2), at(1, 4, ledger=2), at(2, 5, ledger=2)]
    verdict = check(GOOD, stored, [*GOOD, *GOOD[2:], *stored[5:]], in_order=True)
    assert verdict.violations == {}
    assert (verdict.stored_twice, verdict.delivered_again) == (2, 5)


def test_what_was_stored_without_a_receipt_is_allowed() -> None:
    assert kinds(GOOD[:3], GOOD, GOOD) == set()


def test_a_lost_message_is_noticed() -> None:
    assert "receipted message lost" in kinds(GOOD, GOOD[:4], GOOD[:4])
    assert "gap in what was stored" in kinds(GOOD, [*GOOD[:2], *GOOD[3:]], GOOD)


def test_an_undelivered_message_is_noticed() -> None:
    assert kinds(GOOD, GOOD, [*GOOD[:2], *GOOD[3:]]) >= {
        "receipted message never delivered",
        "gap in what was delivered",
    }


def test_a_reused_id_is_noticed() -> None:
    later = [*GOOD[:4], at(4, 9)]
    assert "id reused" in kinds(GOOD, later, GOOD)


def test_a_message_that_was_delivered_and_is_gone_is_noticed() -> None:
    assert "delivered message disappeared" in kinds(GOOD[:3], GOOD[:4], GOOD)


def test_broken_order_is_noticed() -> None:
    swapped = [at(0, 0), at(1, 2), at(2, 1)]
    assert "order broken as stored" in kinds([], swapped, [])
    assert "order broken as delivered" in kinds([], [], swapped)


def test_altered_bytes_are_noticed() -> None:
    body = body_of("a", 7)
    assert parse_body(body) == ("a", 7)
    for index in (2, 50, len(body) - 1):
        altered = bytearray(body)
        altered[index] ^= 1
        with pytest.raises((AssertionError, ValueError)):
            parse_body(bytes(altered))


def assert_promises_kept(report: kill_loop.Report, kills: int) -> None:
    assert report.failures() == [], f"seed {report.seed}"
    assert len(report.ready_s) == kills
    assert all(verdict.receipted > 0 for verdict in report.verdicts.values())


@pytest.mark.geminga_only
def test_killed_three_times_under_load(tmp_path: Path) -> None:
    assert_promises_kept(kill_loop.run(3, tmp_path), 3)


@pytest.mark.long
@pytest.mark.geminga_only
def test_killed_twenty_times_under_load(tmp_path: Path) -> None:
    assert_promises_kept(kill_loop.run(20, tmp_path), 20)
