"""How much a test tries: by day what a person waits for, by night what a machine has time for.

`GEMINGA_TESTS=night python -m pytest tests/...` takes the larger numbers, and draws new examples in every
run; by day property tests draw the same ones each time.
"""

from __future__ import annotations

import os

IS_NIGHT = os.environ.get("GEMINGA_TESTS") == "night"


def budget(day: int, night: int) -> int:
    """How many examples, programs or cases a test tries in this run."""
    return night if IS_NIGHT else day
