"""Numbers as a person reads them. None, what is not known, is a dash."""

from __future__ import annotations

UNKNOWN = "-"
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_COUNT_UNITS = ((1_000_000_000, "G"), (1_000_000, "M"))
_AGE_UNITS = ((86_400_000, "d", 3_600_000, "h"), (3_600_000, "h", 60_000, "m"), (60_000, "m", 1000, "s"))


def count_text(number: float | None) -> str:
    """`12345`, `12.3 M`"""
    if number is None:
        return UNKNOWN
    for size, unit in _COUNT_UNITS:
        if abs(number) >= 10 * size:
            return f"{number / size:.1f} {unit}"
    return f"{number:.0f}"


def rate_text(per_second: float | None) -> str:
    """`0`, `0.25`, `12.3`, `1234`, `12.3 M`"""
    if per_second is None:
        return UNKNOWN
    if per_second < 0.005:
        return "0"
    if per_second < 9.995:
        return f"{per_second:.2f}"
    return f"{per_second:.1f}" if per_second < 999.95 else count_text(per_second)


def bytes_text(size: float | None) -> str:
    """`0 B`, `512 B`, `1.5 KiB`, `97.7 GiB`"""
    if size is None:
        return UNKNOWN
    for unit in _BYTE_UNITS:
        if abs(size) < 1024 or unit == _BYTE_UNITS[-1]:
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


def age_text(duration_ms: float | None) -> str:
    """`0s`, `42s`, `3m 5s`, `7h 12m`, `12d 3h`"""
    if duration_ms is None:
        return UNKNOWN
    for size, unit, smaller, smaller_unit in _AGE_UNITS:
        if duration_ms >= size:
            return f"{duration_ms // size:.0f}{unit} {duration_ms % size // smaller:.0f}{smaller_unit}"
    return f"{duration_ms / 1000:.0f}s"


def share_text(part: float, whole: float) -> str:
    """`42 %`"""
    return f"{part / whole * 100:.0f} %" if whole else UNKNOWN
