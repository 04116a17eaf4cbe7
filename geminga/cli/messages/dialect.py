"""In what `geminga produce|consume|read` and `pulsar-client produce|consume|read` differ."""

from __future__ import annotations

from typing import NamedTuple


class Dialect(NamedTuple):
    prog: str
    """What the command calls itself: `geminga`."""
    separator: str | None
    """Where a `--message` is cut into several; None: nowhere."""
    count_default: int
    """How many messages `consume` and `read` take by default; 0: no end."""
    format: str
    start: str
    """Where `read` begins by default."""
    counts_on_stdout: bool
    """Where the number of messages is told at the end."""


GEMINGA = Dialect("geminga", None, 0, "plain", "earliest", counts_on_stdout=False)
PULSAR = Dialect("pulsar-client", ",", 1, "pulsar", "latest", counts_on_stdout=True)
