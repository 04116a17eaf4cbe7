"""Values of flags as pulsar-admin takes them: times, sizes, positions, lists and pairs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from typing import Any

from geminga.cli.arguments import options
from geminga.cli.arguments.options import duration_ms, pair

MIB = 2**20
EARLIEST = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}
LATEST = {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1, "partitionIndex": -1}


def seconds(text: str) -> int:
    """Whole seconds of a duration, as `units.duration_ms` reads it; below 0 it is the number as it stands."""
    if (number := _below_zero(text, "smhdwy")) is not None:
        return number
    found, rest_ms = divmod(duration_ms(text), 1000)
    if rest_ms:
        raise argparse.ArgumentTypeError(f"expected whole seconds, such as 30s, 10m or 3h, not {text!r}")
    return found


def size_bytes(text: str) -> int:
    """Bytes, as `units.size_bytes` reads them; below 0 it is the number as it stands."""
    number = _below_zero(text, "kmgt")
    return options.size_bytes(text) if number is None else number


def _below_zero(text: str, units: str) -> int | None:
    """pulsar-admin takes them for "no limit" and the like, with a unit or without."""
    digits = text.removeprefix("-").rstrip(units + units.upper())
    is_one = text.startswith("-") and digits.isascii() and digits.isdigit() and len(digits) < 19
    return -int(digits) if is_one and len(text) - len(digits) <= 2 else None


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
