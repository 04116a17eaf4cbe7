"""When the entries of a ledger were published: what expiry, quotas and seeks by time go by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from geminga.errors import ProtocolError
from geminga.position import LATEST, Position
from geminga.wire.message_metadata import broker_timestamp_ms, peek, peek_or_none

if TYPE_CHECKING:
    from geminga.managed_ledger.chain.entry import Entry
    from geminga.managed_ledger.cursor.cursor import Cursor
    from geminga.managed_ledger.managed_ledger import ManagedLedger


async def oldest_unacknowledged(ledger: ManagedLedger, cursor: Cursor) -> Entry | None:
    """The first entry of the backlog; None if it is empty."""
    position = cursor.next_unacknowledged(ledger.next_position(cursor.mark_delete))
    found = await ledger.read_positions((position,))
    return found[0] if found else None


def published_ms(entry: Entry, by_broker_time: bool) -> int:
    """When an entry was published, by its producer's clock or by ours; 0 if its metadata cannot be read: it
    is delivered to no one and may go.
    """
    try:
        stamped_ms = broker_timestamp_ms(entry.body) if by_broker_time else None
        return peek(entry.body).publish_time_ms if stamped_ms is None else stamped_ms
    except ProtocolError:
        return 0


async def first_published_at(ledger: ManagedLedger, since_ms: int) -> Position:
    """The first entry that was published at `since_ms` or later; LATEST if there is none. By bisection, so
    it takes a few reads, which raise StorageError.
    """

    def is_late_enough(entry: Entry) -> bool:
        metadata = peek_or_none(entry.body)
        # One whose metadata cannot be read is delivered to no consumer.
        return metadata is not None and metadata.publish_time_ms >= since_ms

    found = await ledger.reads.find_first(is_late_enough)
    return found if found is not None else LATEST
