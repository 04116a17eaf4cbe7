"""Decides when to compact, and which logs, without I/O. Thresholds and their order are BookKeeper's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from geminga.bookie.records.settings import BookieSettings


class LogShare(NamedTuple):
    """How much of a closed entry log is living."""

    log_id: int
    live_bytes: int
    record_bytes: int
    """Bytes of the records of all ledgers that were ever in the log."""


class CompactionPass(NamedTuple):
    """One compaction: logs whose living share is below `threshold`, for at most `seconds_max`."""

    name: str
    threshold: float
    seconds_max: float


def logs_to_compact(logs: Iterable[LogShare], threshold: float) -> list[int]:
    """The logs with a smaller share of living records than `threshold`. The logs that free most space for
    each copied byte come first. Logs without living records are deleted instead.
    """
    chosen = [log for log in logs if 0 < log.live_bytes < threshold * log.record_bytes]
    # Least alive first frees the most space for each byte copied, which matters when the time limit ends the
    # run. The id makes equal shares come in the order of age, and tests repeatable.
    chosen.sort(key=lambda log: (log.live_bytes / log.record_bytes, log.log_id))
    return [log.log_id for log in chosen]


def pause_s(copied_bytes: int, elapsed_s: float, rate_bytes_per_s: int) -> float:
    """How long to wait after `copied_bytes` in `elapsed_s`, to stay within the rate. 0: no limit."""
    # After the copy, not before it: a slice's true size is known only then.
    return max(0.0, copied_bytes / rate_bytes_per_s - elapsed_s) if rate_bytes_per_s else 0.0


class CompactionSchedule:
    """Minor compactions are frequent, major ones rare; a major one replaces a minor one that is due. An
    interval or threshold of 0 turns the kind off. Times are those of the disk's clock.
    """

    def __init__(self, settings: BookieSettings, now_s: float) -> None:
        self._minor = CompactionPass(
            "minor", settings.minor_compaction_threshold, settings.minor_compaction_max_s
        )
        self._major = CompactionPass(
            "major", settings.major_compaction_threshold, settings.major_compaction_max_s
        )
        self._minor_interval_s = _interval_s(self._minor, settings.minor_compaction_interval_s)
        self._major_interval_s = _interval_s(self._major, settings.major_compaction_interval_s)
        self._minor_due_s = now_s + self._minor_interval_s
        self._major_due_s = now_s + self._major_interval_s

    @property
    def next_due_s(self) -> float:
        """Seconds until the next compaction; infinite if both kinds are off."""
        return min(self._minor_due_s, self._major_due_s)

    def take_due(self, now_s: float) -> CompactionPass | None:
        """The compaction that is due now, if any; the next of its kind is due an interval later."""
        if self._major_due_s <= now_s:
            self._major_due_s = now_s + self._major_interval_s
            self._minor_due_s = now_s + self._minor_interval_s
            return self._major
        if self._minor_due_s <= now_s:
            self._minor_due_s = now_s + self._minor_interval_s
            return self._minor
        return None


def _interval_s(kind: CompactionPass, interval_s: float) -> float:
    # Infinity and not None, so that `next_due_s` stays a plain minimum. As in BookKeeper, 0 turns a kind off.
    return interval_s if interval_s > 0 and kind.threshold > 0 else float("inf")
