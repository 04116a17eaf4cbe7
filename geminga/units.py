"""Durations, moments and sizes as people write them: one grammar for flags, files, options and test kits.

Each function raises ValueError with a text that names the forms that it takes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import datetime

DURATION_FORMS: Final = "250ms, 2s, 90m, 1h30m, 2d or 1w"
TIME_FORMS: Final = "2026-12-24T18:00 (in UTC, unless it names a zone) or milliseconds since 1970"
SIZE_FORMS: Final = "4096, 10k, 16M or 1G"
MS_MAX: Final = 2**63 - 1
"""Of durations and moments. Java's clients, the API and the files keep both in 64 bits."""

_UNITS_MS: Final = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
    "y": 31_536_000_000,
}
_NUMBER: Final = r"(\d{1,18}(?:\.\d{0,18})?|\.\d{1,18})\s*"
_PART: Final = re.compile(rf"{_NUMBER}(ms|s|min|m|h|d|w|y)\s*", re.ASCII | re.IGNORECASE)
_DURATION: Final = re.compile(rf"(?:{_PART.pattern})+", re.ASCII | re.IGNORECASE)
_BARE: Final = re.compile(_NUMBER, re.ASCII)
_SIZE: Final = re.compile(rf"{_NUMBER}([kmgt]?)(?:(?<=[kmgt])i?b|b)?", re.ASCII | re.IGNORECASE)


def duration_ms(length: str | float | datetime.timedelta) -> int:
    """Milliseconds of `250ms`, `1.5m`, `1h30m`, `2d` or `1w`, in any case, with or without blanks.

    `min` is another name of `m`, and `y` is 365 days. A number without a unit is seconds, as text too. Less
    than half a millisecond counts as 0. Raises ValueError, for negative lengths too.
    """
    if isinstance(length, str):
        text = length.strip()
        if _BARE.fullmatch(text):
            text += "s"
        parts = _PART.findall(text) if _DURATION.fullmatch(text) else []
        found_ms = sum(_times(number, _UNITS_MS[unit.lower()]) for number, unit in parts) if parts else -1
    else:
        length_s = length if isinstance(length, int | float) else length.total_seconds()
        found_ms = round(length_s * 1000) if 0 <= length_s * 1000 <= MS_MAX else -1
    if not 0 <= found_ms <= MS_MAX:
        raise ValueError(f"expected a duration such as {DURATION_FORMS}, not {_shown(length)}")
    return found_ms


def signed_ms(text: str) -> int:
    """As `duration_ms`; `-1h` is negative."""
    text = text.strip()
    return -duration_ms(text[1:]) if text.startswith("-") else duration_ms(text)


def time_ms(text: str) -> int:
    """Milliseconds since 1970 of a moment: that number itself, or a date or time as ISO 8601 has them.

    A moment without a zone is in UTC, wherever the program runs. Raises ValueError, for moments before 1970
    too.
    """
    import datetime

    text = text.strip()
    found_ms = -1
    if text.isascii() and text.isdigit():
        found_ms = int(text) if len(text) <= 19 else -1
    else:
        try:
            moment = datetime.datetime.fromisoformat(text)
        except ValueError:
            moment = None
        if moment is not None:
            zoned = moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)
            found_ms = round(zoned.timestamp() * 1000)
    if not 0 <= found_ms <= MS_MAX:
        raise ValueError(f"expected a time such as {TIME_FORMS}, not {_shown(text)}")
    return found_ms


def time_text(at_ms: int) -> str:
    """A moment as `time_ms` reads it, in UTC; the number itself if no date shows it."""
    import datetime

    try:
        moment = datetime.datetime.fromtimestamp(at_ms / 1000, datetime.UTC)
    except (ValueError, OverflowError, OSError):
        return str(at_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def size_bytes(text: str) -> int:
    """Bytes of `4096`, `10k`, `1.5M`, `16GiB` or `1T`, in any case; each unit is 1024 of the one before it.

    Raises ValueError, for negative sizes too.
    """
    found = _SIZE.fullmatch(text.strip())
    size = -1 if found is None else _times(found[1], 1 << 10 * " kmgt".index(found[2].lower() or " "))
    if size < 0:
        raise ValueError(f"expected a size such as {SIZE_FORMS}, not {_shown(text)}")
    return size


def _times(number: str, unit: int) -> int:
    """The product, exact for whole numbers however long they are."""
    whole, _, fraction = number.partition(".")
    return int(whole or 0) * unit + round(float(f"0.{fraction or 0}") * unit)


def _shown(given: object) -> str:
    text = repr(given)
    return text if len(text) <= 100 else f"{text[:97]}..."
