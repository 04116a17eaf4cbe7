"""A managed ledger's inside in the shape of Pulsar's `internalStats`."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping

import msgspec

from geminga.admin.statistics.stats_json import PartitionedMetadata, time_text
from geminga.managed_ledger.cursor.statistics import CursorStatistics
from geminga.managed_ledger.statistics import LedgerStatistics, ManagedLedgerStatistics
from geminga.names import TopicName


class Ledger(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    ledger_id: int = -1
    entries: int = -1
    size: int = -1
    timestamp: int = 0
    offloaded: bool = False
    metadata: str | msgspec.UnsetType = msgspec.UNSET
    under_replicated: bool = False


class Cursor(msgspec.Struct, rename="camel", kw_only=True):
    mark_delete_position: str
    read_position: str
    waiting_read_op: bool
    pending_read_ops: int = 0
    messages_consumed_counter: int
    cursor_ledger: int
    cursor_ledger_last_entry: int
    individually_deleted_messages: str
    last_ledger_switch_timestamp: str
    state: str
    active: bool
    number_of_entries_since_first_not_acked_message: int
    total_non_contiguous_deleted_messages_range: int
    subscription_have_pending_read: bool
    subscription_have_pending_replay_read: bool = False
    properties: dict[str, int]


class InternalStats(msgspec.Struct, rename="camel", kw_only=True):
    entries_added_counter: int
    number_of_entries: int
    total_size: int
    current_ledger_entries: int
    current_ledger_size: int
    last_ledger_created_timestamp: str
    waiting_cursors_count: int
    pending_add_entries_count: int
    last_confirmed_entry: str
    state: str
    ledgers: list[Ledger]
    cursors: dict[str, Cursor]
    schema_ledgers: list[Ledger] = []
    compacted_ledger: Ledger = Ledger()
    properties: dict[str, str] | msgspec.UnsetType = msgspec.UNSET


class PartitionedInternalStats(msgspec.Struct, rename="camel", kw_only=True):
    metadata: PartitionedMetadata
    partitions: dict[str, InternalStats]


def internal_stats_json(
    source: ManagedLedgerStatistics, readers: Mapping[str, bool], topic: TopicName | None = None
) -> InternalStats:
    """The ledger being written is listed with 0 entries and bytes, as Pulsar does; tools patch that in.

    `readers` are the cursors with consumers: whether one of these takes more. With a topic the ledgers'
    metadata are shown, too.
    """
    cursors = {name: _cursor(cursor, source, readers.get(name)) for name, cursor in source.cursors.items()}
    return InternalStats(
        entries_added_counter=source.entries_added,
        number_of_entries=source.number_of_entries,
        total_size=source.total_size_bytes,
        current_ledger_entries=source.current_ledger_entries,
        current_ledger_size=source.current_ledger_size_bytes,
        last_ledger_created_timestamp=time_text(source.last_ledger_created_ms),
        waiting_cursors_count=sum(cursor.waiting_read_op for cursor in cursors.values()),
        pending_add_entries_count=source.pending_adds,
        last_confirmed_entry=str(source.last_confirmed),
        state=source.state,
        ledgers=[_ledger(ledger, topic) for ledger in source.ledgers],
        cursors=cursors,
        properties=dict(source.properties) or msgspec.UNSET,
    )


def _ledger(source: LedgerStatistics, topic: TopicName | None) -> Ledger:
    return Ledger(
        ledger_id=source.ledger_id,
        entries=source.entries,
        size=source.size_bytes,
        timestamp=source.closed_ms,
        metadata=msgspec.UNSET if topic is None else _ledger_metadata(source, topic),
    )


def _ledger_metadata(source: LedgerStatistics, topic: TopicName) -> str:
    """As BookKeeper prints it, of a ledger that one bookie has."""
    state = "state=OPEN"
    if source.closed_ms:
        state = f"state=CLOSED, length={source.size_bytes}, lastEntryId={source.entries - 1}"
    tenant, namespace = topic.namespace.tenant, topic.namespace.local
    path = b64encode(f"{tenant}/{namespace}/{topic.domain}/{topic.local}".encode()).decode()
    return (
        "LedgerMetadata{formatVersion=3, ensembleSize=1, writeQuorumSize=1, ackQuorumSize=1, "
        f"{state}, digestType=CRC32C, password=OMITTED, ensembles={{0=[localhost]}}, "
        f"customMetadata={{pulsar/managed-ledger=base64:{path}, component=base64:bWFuYWdlZC1sZWRnZXI=, "
        "application=base64:cHVsc2Fy}}"
    )


def _cursor(source: CursorStatistics, ledger: ManagedLedgerStatistics, takes_more: bool | None) -> Cursor:
    # A reader that stands behind the last entry and takes more waits for the next one.
    waiting = bool(takes_more) and source.read_position > ledger.last_confirmed
    return Cursor(
        mark_delete_position=str(source.mark_delete),
        read_position=str(source.read_position),
        waiting_read_op=waiting,
        messages_consumed_counter=ledger.entries_added - source.backlog_entries,
        cursor_ledger=source.cursor_ledger_id,
        cursor_ledger_last_entry=source.cursor_ledger_last_entry_id,
        individually_deleted_messages=source.individually_deleted_messages,
        last_ledger_switch_timestamp=time_text(source.ledger_switched_ms),
        state="Open" if source.cursor_ledger_id >= 0 else "NoLedger",
        active=takes_more is not None,
        # Pulsar counts the place that is read next, too.
        number_of_entries_since_first_not_acked_message=source.entries_after_first_unacknowledged + 1,
        total_non_contiguous_deleted_messages_range=len(source.acknowledged_ranges),
        subscription_have_pending_read=waiting,
        properties=dict(source.properties),
    )
