"""A managed ledger's metadata in the shape of Pulsar's `internal-info`."""

from __future__ import annotations

from collections.abc import Generator

import msgspec
from msgspec import UNSET, UnsetType

from geminga.admin.statistics.stats_json import ROWS_MAX, instant_text
from geminga.managed_ledger.statistics import ManagedLedgerStatistics
from geminga.position import Position


class Place(msgspec.Struct, rename="camel", frozen=True):
    ledger_id: int
    entry_id: int


class Ledger(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    ledger_id: int
    entries: int | UnsetType = UNSET
    size: int | UnsetType = UNSET
    timestamp: int | UnsetType = UNSET
    is_offloaded: bool = False


class Cursor(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    version: int = 0
    creation_date: str
    modification_date: str
    cursors_ledger_id: int
    mark_delete: Place


class InternalInfo(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    version: int = 0
    creation_date: str
    modification_date: str
    ledgers: list[Ledger]
    terminated_position: Place | UnsetType = UNSET
    cursors: dict[str, Cursor]
    properties: dict[str, str] | UnsetType = UNSET


def internal_info_json(source: ManagedLedgerStatistics) -> Generator[int, None, InternalInfo]:
    """Yields after some rows (ledgers, cursors) how many. The open ledger has neither entries nor size. The
    metadata store keeps no times of its own: shown are when the topic was made, and when its newest ledger,
    or a cursor's, was.
    """
    created = instant_text(source.created_ms)
    ledgers, cursors = [], {}
    for ledger in source.ledgers:
        ledgers.append(
            Ledger(
                ledger_id=ledger.ledger_id,
                entries=ledger.entries if ledger.closed_ms else UNSET,
                size=ledger.size_bytes if ledger.closed_ms else UNSET,
                timestamp=ledger.closed_ms or source.last_ledger_created_ms,
            )
        )
        if len(ledgers) % ROWS_MAX == 0:
            yield ROWS_MAX
    for name, cursor in source.cursors.items():
        if cursor.durable:
            cursors[name] = Cursor(
                creation_date=created,
                modification_date=instant_text(cursor.ledger_switched_ms or source.created_ms),
                cursors_ledger_id=cursor.cursor_ledger_id,
                mark_delete=_place(cursor.mark_delete),
            )
        yield 1
    return InternalInfo(
        creation_date=created,
        modification_date=instant_text(source.last_ledger_created_ms),
        ledgers=ledgers,
        terminated_position=UNSET if source.terminated is None else _place(source.terminated),
        cursors=cursors,
        properties=dict(source.properties) or UNSET,
    )


def _place(position: Position) -> Place:
    return Place(position.ledger_id, position.entry_id)
