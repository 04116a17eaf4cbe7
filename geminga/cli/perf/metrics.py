"""What a broker's metrics say of where entries were read: Geminga's counters, or the real Pulsar's rates.

Geminga counts bytes by the place where a read found them. Pulsar gives the throughput of the managed ledgers'
cache, hits and misses, over its last interval (`managedLedgerStatsPeriodSeconds`, 60 by default: set it to 1
to look at curves), and a standalone one does not say where in its bookie a miss was found.
"""

from __future__ import annotations

import urllib.request
from typing import Final

from geminga.cli.client.errors import ClientError
from geminga.cli.perf.course import Served

SECONDS_MAX: Final = 20


GEMINGA: Final = {
    "tail_bytes": "geminga_tail_cache_bytes_served",
    "write_cache_bytes": "geminga_bookie_read_write_cache_bytes",
    "read_cache_bytes": "geminga_bookie_read_read_cache_bytes",
    "log_bytes": "geminga_bookie_read_entry_log_bytes",
    "bookie_entries": "bookkeeper_server_READ_ENTRY_count",
    "log_loads": "geminga_bookie_read_log_loads",
}
"""The counter for each field."""


def sums(page: str) -> dict[str, float]:
    """The sum over all labels of each metric of an exposition; of what succeeded, where that is a label."""
    found: dict[str, float] = {}
    for line in page.splitlines():
        if not line or line.startswith("#"):
            continue
        name, _, rest = line.partition("{") if "{" in line else line.partition(" ")
        labels, _, value = rest.rpartition("}") if "{" in line else ("", "", rest)
        if 'success="false"' in labels or "quantile=" in labels:
            continue
        try:
            found[name] = found.get(name, 0.0) + float(value.split()[0])
        except (IndexError, ValueError):
            continue
    return found


class Meter:
    """Asks one broker again and again. Blocking: to be called off the loop."""

    def __init__(self, url: str) -> None:
        self._url = f"{url.rstrip('/')}/metrics/"
        self._summed = Served()
        self.is_geminga = True

    def read(self, seconds: float) -> Served:
        """As of now, since the broker's start; or, of a broker that gives rates only, what these add up to
        since the first call, which are `seconds` apart. ClientError.
        """
        try:
            with urllib.request.urlopen(self._url, timeout=SECONDS_MAX) as answer:
                found = sums(answer.read().decode())
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, ConnectionRefusedError):
                reason = "nothing listens there; --web-url names the admin address of the broker"
            raise ClientError(f"{self._url}: {reason}") from None
        self.is_geminga = GEMINGA["tail_bytes"] in found
        if self.is_geminga:
            return Served(**{field: found.get(name, 0.0) for field, name in GEMINGA.items()})
        self._summed = self._summed._replace(
            tail_bytes=self._summed.tail_bytes + found.get("pulsar_ml_cache_hits_throughput", 0.0) * seconds,
            unplaced_bytes=self._summed.unplaced_bytes
            + found.get("pulsar_ml_cache_misses_throughput", 0.0) * seconds,
            bookie_entries=self._summed.bookie_entries
            + found.get("pulsar_ml_cache_misses_rate", 0.0) * seconds,
        )
        return self._summed
