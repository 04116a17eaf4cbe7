"""The delayed index's own properties in the records of topics and cursors: each names a ledger.

They are Pulsar's: `#pulsar.internal.delayed.bucket_{start}_{end}` in a cursor's properties, the value the id
of the ledger that holds the bucket. This room knows them only so that no such ledger outlives the record that
names it; what is in them is the tracker's business.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

V = TypeVar("V")

INTERNAL_PREFIX: Final = "#pulsar.internal."
"""Properties under this are never shown as a topic's own, and never replaced with them."""
DELAYED_PREFIX: Final = INTERNAL_PREFIX + "delayed."


def named_ledgers(properties: Mapping[str, int] | Mapping[str, str]) -> list[int]:
    """The ledgers that the properties of a topic or cursor name. Values that are no ledger ids are left
    out.
    """
    named = []
    for key, value in properties.items():
        if key.startswith(DELAYED_PREFIX):
            try:
                named.append(int(value))
            except ValueError:
                continue
    return named


def without_internal(properties: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in properties.items() if not key.startswith(INTERNAL_PREFIX)}


def only_internal(properties: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in properties.items() if key.startswith(INTERNAL_PREFIX)}


def swapped(properties: Mapping[str, V], add: Mapping[str, V], remove: Mapping[str, V]) -> dict[str, V]:
    """The properties without those in `remove` that still have the value given there, and with those in
    `add`: so a late removal never takes what has replaced its own.
    """
    kept = {key: value for key, value in properties.items() if remove.get(key) != value}
    kept.update(add)
    return kept
