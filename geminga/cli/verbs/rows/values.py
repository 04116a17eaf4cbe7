"""Values of flags as pulsar-admin takes them: times, sizes, positions, lists and pairs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from typing import Any

from geminga.cli.arguments.options import duration_ms, pair

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800, "y": 31_536_000}
_UNITS_BYTES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
MIB = 2**20
EARLIEST = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}
LATEST = {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1, "partitionIndex": -1}


def seconds(text: str) -> int:
    """`10s`, `5m`, `3h`, `2d`, `1w`, `1y`; a bare number is seconds, -1 stays -1."""
    number, unit = (text[:-1], text[-1:].lower()) if text[-1:].isalpha() else (text, "s")
    digits = number.removeprefix("-")
    if unit not in _UNITS_S or not (digits.isascii() and digits.isdigit() and len(digits) < 13):
        raise argparse.ArgumentTypeError(f"expected a time such as 30s, 10m, 3h, 2d or 1w, not {text!r}")
    value = int(number)
    return value if value < 0 else value * _UNITS_S[unit]


def milliseconds(text: str) -> int:
    """As `seconds`, and `250ms`, `0.25s`; never negative."""
    if text[-1:].lower() not in ("w", "y"):
        return duration_ms(text.lower())
    if (value := seconds(text)) < 0:
        raise argparse.ArgumentTypeError(f"expected a time such as 250ms, 10m, 3h, 2d or 1w, not {text!r}")
    return value * 1000


def size_bytes(text: str) -> int:
    """`4096`, `10M`, `16G`, `1T`; a bare number is bytes, -1 stays -1."""
    number, unit = (text[:-1], text[-1:].lower()) if text[-1:].isalpha() else (text, "")
    digits = number.removeprefix("-")
    if unit not in _UNITS_BYTES or not (digits.isascii() and digits.isdigit() and len(digits) < 19):
        raise argparse.ArgumentTypeError(f"expected a size such as 4096, 10M or 16G, not {text!r}")
    value = int(number)
    return value if value < 0 else value * _UNITS_BYTES[unit]


def minutes(text: str) -> int:
    """As `seconds`, in whole minutes. What is less counts as 0, as in pulsar-admin; only a bare number is
    taken for minutes then. Either is said.
    """
    return _in_units(text, seconds, 60, "minutes")


def mebibytes(text: str) -> int:
    """As `size_bytes`, in whole MiB, and as `minutes`."""
    return _in_units(text, size_bytes, MIB, "MiB")


def _in_units(text: str, parse: Callable[[str], int], unit: int, name: str) -> int:
    value = parse(text)
    if value <= 0 or value >= unit:
        return value if value <= 0 else value // unit
    if not text.isdigit():
        print(f"{text} is less than what is counted in, whole {name}: it counts as 0", file=sys.stderr)
        return 0
    print(f"{text} without a unit is taken for {text} {name}", file=sys.stderr)
    return value


def message_id(text: str) -> dict[str, int]:
    """`earliest`, `latest` or `ledger:entry`, as the API takes it."""
    if text in ("earliest", "latest"):
        return EARLIEST if text == "earliest" else LATEST
    return position(text)


def position(text: str) -> dict[str, int]:
    """`ledger:entry`; either may be -1."""
    ledger, _, entry = text.partition(":")
    if not (_is_whole(ledger) and _is_whole(entry)):
        raise argparse.ArgumentTypeError(f"expected earliest, latest or ledger:entry, not {text!r}")
    return {"ledgerId": int(ledger), "entryId": int(entry), "partitionIndex": -1}


def _is_whole(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) < 20


def names(text: str) -> list[str]:
    """`a,b,c`"""
    return [name.strip() for name in text.split(",") if name.strip()]


def pairs(text: str) -> list[tuple[str, str]]:
    """`a=1,b=2`"""
    return [pair(part) for part in text.split(",") if part]


def mapping(given: Iterable[tuple[str, str]] | None) -> dict[str, str]:
    return dict(given or ())


def many(kind: Callable[[str], list[Any]], **options: Any) -> dict[str, Any]:
    """Options of a flag that takes a list, and may be given more than once."""
    return {"type": kind, "action": "extend", "default": None, **options}
