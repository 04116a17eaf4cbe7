"""What a run of `geminga perf tail` or `catch-up` has seen: its samples, and their sum. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

SCENARIOS = ("tail", "catch-up")
MB = 1e6


class Served(NamedTuple):
    """Since the broker's start, or (a difference) in a stretch of time. All bytes are of entries."""

    tail_bytes: float = 0
    write_cache_bytes: float = 0
    read_cache_bytes: float = 0
    log_bytes: float = 0
    unplaced_bytes: float = 0
    """From the bookie, which does not say from where in it."""
    bookie_entries: float = 0
    """Entries that were read from the bookie, its caches included."""
    log_loads: float = 0
    """Reads from files of the bookie, read-ahead included."""

    def since(self, earlier: Served) -> Served:
        return Served(*(max(0.0, now - then) for now, then in zip(self, earlier, strict=True)))

    @property
    def bytes(self) -> float:
        return self.tail_bytes + self.bookie_bytes

    @property
    def bookie_bytes(self) -> float:
        return self.write_cache_bytes + self.read_cache_bytes + self.log_bytes + self.unplaced_bytes


@dataclass(slots=True)
class Sample:
    """One second, or about one."""

    at_s: float
    """Since the beginning, at its end."""
    seconds: float
    served: Served
    published_messages: int
    published_bytes: int
    consumed_messages: int
    consumed_bytes: int

    def line(self) -> str:
        served, mb = self.served, MB * self.seconds
        places = {
            "tail cache": served.tail_bytes,
            "write cache": served.write_cache_bytes,
            "read cache": served.read_cache_bytes,
            "disk": served.log_bytes + served.unplaced_bytes,
        }
        return (
            f"{self.at_s:6.1f} s  publish {self.published_bytes / mb:6.1f}"
            f"  consume {self.consumed_bytes / mb:6.1f}  from "
            + ", ".join(f"{place} {size / mb:.1f}" for place, size in places.items())
            + f" MB/s; {served.log_loads:.0f} disk reads"
        )


@dataclass(slots=True)
class Course:
    """All samples of a run."""

    scenario: str
    samples: list[Sample] = field(default_factory=list)
    consuming_from_s: float = 0.0

    def total(self) -> Served:
        return Served(*map(sum, zip(*(sample.served for sample in self.samples), strict=True)))

    def summary(self) -> dict[str, float | str]:
        """Rates in messages and MB a second while each side ran; shares of what was served; reads."""
        total, read = self.total(), [sample for sample in self.samples if sample.at_s > self.consuming_from_s]
        ahead = total.read_cache_bytes + total.log_bytes
        return {
            "scenario": self.scenario,
            "published_messages": sum(sample.published_messages for sample in self.samples),
            "consumed_messages": sum(sample.consumed_messages for sample in self.samples),
            "publish_mb_per_s": _rate(self.samples, "published_bytes"),
            "consume_mb_per_s": _rate(read, "consumed_bytes"),
            "tail_cache_share": _share(total.tail_bytes, total.bytes),
            "write_cache_share": _share(total.write_cache_bytes, total.bytes),
            "read_cache_share": _share(total.read_cache_bytes, total.bytes),
            "entry_log_share": _share(total.log_bytes, total.bytes),
            "bookie_share": _share(total.bookie_bytes, total.bytes),
            "read_ahead_share": _share(total.read_cache_bytes, ahead),
            "entries_read_from_bookie": round(total.bookie_entries),
            "disk_reads": round(total.log_loads),
        }


def _rate(samples: Sequence[Sample], name: str) -> float:
    seconds = sum(sample.seconds for sample in samples)
    return round(sum(getattr(sample, name) for sample in samples) / MB / seconds, 2) if seconds else 0.0


def _share(part: float, whole: float) -> float:
    return round(part / whole, 4) if whole else 0.0
