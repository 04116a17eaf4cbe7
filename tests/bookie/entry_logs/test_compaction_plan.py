"""Which logs are compacted, in what order, when, and how fast."""

from __future__ import annotations

from geminga.bookie.entry_logs.compaction_plan import CompactionSchedule, LogShare, logs_to_compact, pause_s
from geminga.bookie.records.settings import BookieSettings


def test_logs_below_the_threshold_the_emptiest_first() -> None:
    logs = [
        LogShare(1, 50, 100),
        LogShare(2, 49, 100),
        LogShare(3, 0, 100),
        LogShare(4, 1, 100),
        LogShare(5, 15, 1000),
        LogShare(6, 4900, 10_000),
        LogShare(7, 100, 100),
    ]
    assert logs_to_compact(logs, 0.5) == [4, 5, 2, 6]
    assert logs_to_compact(logs, 0.2) == [4, 5]
    assert logs_to_compact(logs, 0) == []


def test_an_empty_log_file_is_no_candidate() -> None:
    assert logs_to_compact([LogShare(1, 0, 0)], 1.0) == []


def test_copying_is_slowed_to_the_rate() -> None:
    assert pause_s(8_000_000, 0.25, 8_000_000) == 0.75
    assert pause_s(1000, 2.0, 8_000_000) == 0.0
    assert pause_s(1 << 40, 0.0, 0) == 0.0


def test_minor_often_major_seldom_and_in_its_place() -> None:
    settings = BookieSettings(minor_compaction_interval_s=10, major_compaction_interval_s=25)
    schedule = CompactionSchedule(settings, 100.0)
    assert schedule.next_due_s == 110
    assert schedule.take_due(109.9) is None
    minor = schedule.take_due(110)
    assert minor is not None
    assert (minor.name, minor.threshold) == ("minor", 0.2)
    assert schedule.take_due(110) is None
    major = schedule.take_due(127)  # both are due
    assert major is not None
    assert (major.name, major.threshold) == ("major", 0.5)
    assert schedule.next_due_s == 137


def test_either_kind_can_be_off() -> None:
    settings = BookieSettings(minor_compaction_threshold=0, major_compaction_interval_s=0)
    schedule = CompactionSchedule(settings, 0.0)
    assert schedule.next_due_s == float("inf")
    assert schedule.take_due(1e9) is None
