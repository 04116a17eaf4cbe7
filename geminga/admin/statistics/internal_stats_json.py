"""A managed ledger's inside in the shape of Pulsar's `internalStats`."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Generator, Mapping
from typing import Final

import msgspec

from geminga.admin.statistics.stats_json import PartitionedMetadata, instant_text
from geminga.managed_ledger.cursor.statistics import CursorStatistics, ranges_text
from geminga.managed_ledger.statistics import LedgerStatistics, ManagedLedgerStatistics
from geminga.names import TopicName

LEDGERS_AT_ONCE: Final = 50
"""Between two yields: a tenth of a millisecond, with their metadata a few of them."""


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
    geminga_ranges_left_out: int | msgspec.UnsetType = msgspec.UNSET
    """Not Pulsar's: how many follow those that are listed. A request with `gemingaRangesOf`, the cursor, and
    `gemingaRangesAfter`, the last position that is listed, gets the next ones.
    """
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
    ledgers: msgspec.Raw
    """A list of `Ledger`."""
    cursors: msgspec.Raw
    """`Cursor` by name."""
    schema_ledgers: list[Ledger] = []
    compacted_ledger: Ledger = Ledger()
    properties: dict[str, str] | msgspec.UnsetType = msgspec.UNSET


class PartitionedInternalStats(msgspec.Struct, rename="camel", kw_only=True):
    metadata: PartitionedMetadata
    partitions: dict[str, object]
    """`InternalStats` by name."""


def internal_stats_json(
    source: ManagedLedgerStatistics, readers: Mapping[str, bool], topic: TopicName | None = None
) -> Generator[int, None, bytes]:
    """`InternalStats` as JSON; yields after some rows (ledgers, cursors, ranges) how many.

    The ledger being written is listed with 0 entries and bytes, as Pulsar does; tools patch that in.
    `readers` are the cursors with consumers: whether one of these takes more. With a topic the ledgers'
    metadata are shown, too.
    """
    waiting, cursors = 0, []
    for name, cursor in source.cursors.items():
        shown = yield from _cursor(cursor, source, readers.get(name))
        waiting += shown.waiting_read_op
        cursors.append(msgspec.json.encode(name) + b":" + msgspec.json.encode(shown))
        yield 1
    ledgers = []
    for start in range(0, len(source.ledgers), LEDGERS_AT_ONCE):
        some = [_ledger(ledger, topic) for ledger in source.ledgers[start : start + LEDGERS_AT_ONCE]]
        ledgers.append(msgspec.json.encode(some)[1:-1])
        yield len(some)
    whole = InternalStats(
        entries_added_counter=source.entries_added,
        number_of_entries=source.number_of_entries,
        total_size=source.total_size_bytes,
        current_ledger_entries=source.current_ledger_entries,
        current_ledger_size=source.current_ledger_size_bytes,
        last_ledger_created_timestamp=instant_text(source.last_ledger_created_ms),
        waiting_cursors_count=waiting,
        pending_add_entries_count=source.pending_adds,
        last_confirmed_entry=str(source.last_confirmed),
        state=source.state,
        ledgers=msgspec.Raw(b"[" + b",".join(ledgers) + b"]"),
        cursors=msgspec.Raw(b"{" + b",".join(cursors) + b"}"),
        properties=dict(source.properties) or msgspec.UNSET,
    )
    return msgspec.json.encode(whole)


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


def _cursor(
    source: CursorStatistics, ledger: ManagedLedgerStatistics, takes_more: bool | None
) -> Generator[int, None, Cursor]:
    # A reader that stands behind the last entry and takes more waits for the next one.
    waiting = bool(takes_more) and source.is_at_end
    ranges = (yield from ranges_text(source.acknowledged_ranges)) if source.acknowledged_ranges else "[]"
    return Cursor(
        mark_delete_position=str(source.mark_delete),
        read_position=str(source.read_position),
        waiting_read_op=waiting,
        messages_consumed_counter=ledger.entries_added - source.backlog_entries,
        cursor_ledger=source.cursor_ledger_id,
        cursor_ledger_last_entry=source.cursor_ledger_last_entry_id,
        individually_deleted_messages=ranges,
        geminga_ranges_left_out=source.ranges_left_out or msgspec.UNSET,
        last_ledger_switch_timestamp=instant_text(source.ledger_switched_ms),
        state="Open" if source.cursor_ledger_id >= 0 else "NoLedger",
        active=takes_more is not None,
        # Pulsar counts the place that is read next, too.
        number_of_entries_since_first_not_acked_message=source.entries_after_first_unacknowledged + 1,
        total_non_contiguous_deleted_messages_range=source.ranges_count,
        subscription_have_pending_read=waiting,
        properties=dict(source.properties),
    )
