"""What is done about values that no column takes. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Mode = Literal["permissive", "dropmalformed", "failfast"]
MODES: Final[tuple[Mode, ...]] = ("permissive", "dropmalformed", "failfast")
"""Spark's words: null for a bad value, the message left out, an error."""
CORRUPT_RECORD: Final = "_corrupt_record"
"""The column that Spark's own sources give a bad record."""
OutOfRange = Literal["clamp", "null", "error"]
OUT_OF_RANGE: Final[tuple[OutOfRange, ...]] = ("clamp", "null", "error")
"""What becomes of a time that no column can say: the last or first that it can, null, or a bad value."""


@dataclass(frozen=True)
class ValueRules:
    """Travels to the workers."""

    mode: Mode = "failfast"
    corrupt_column: str | None = None
    """Where a bad value's bytes are put with `permissive`; None: in no column."""
    out_of_range: OutOfRange = "clamp"


DEFAULT_RULES: Final = ValueRules()
