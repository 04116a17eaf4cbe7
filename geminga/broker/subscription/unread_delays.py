"""Reads the backlog of a subscription that no consumer reads, to learn what of it is delayed.

The index of a subscription has what was sealed into buckets, and what consumers have read. After a restart
the rest is in the backlog alone. Nothing is delivered here and no position moves: the first consumer reads
all of it once more, but for what the index holds then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import islice
from typing import TYPE_CHECKING, Final

import trio

from geminga.limits import MIB
from geminga.managed_ledger.chain.entry import Entry
from geminga.position import Position
from geminga.wire.message_metadata import peek_or_none
from geminga.wire.stored_entry import may_be_delayed

if TYPE_CHECKING:
    from geminga.broker.delays.subscription_delays import SubscriptionDelays
    from geminga.broker.subscription.subscription import Subscription

READ_ENTRIES_MAX: Final = 200
READ_BYTES_MAX: Final = MIB
LOOK_AGAIN_S: Final = 0.01
LOOKS_MAX: Final = 500
"""A bucket that cannot be read meanwhile is not waited for."""


async def read_delays(subscription: Subscription, rest: Callable[[], Awaitable[None]]) -> bool:
    """Bring what has a time into the index, due or not. False: it ended early, since there is a consumer,
    which reads it as well, or a seek came, or the end. `rest` is awaited between two reads. StorageError: an
    entry cannot be read.
    """
    delayed, cursor, ledger = subscription.delayed, subscription.cursor, subscription.topic.ledger
    if subscription.consumers.ignores_delays or not delayed.policy.active or not cursor.durable:
        return True  # nothing is held back here
    if subscription.has_ended:
        return False
    if delayed.has_index():
        await delayed.open()
    if len(subscription.consumers):
        return False
    if delayed.buckets is not None:
        # Until then the ledgers that buckets speak of are passed over.
        await delayed.buckets.recovered()
        await _pass_delivered(delayed)
    if not len(subscription.consumers):
        # All of it is about to be read, so no part has to be read once more for the index.
        delayed.all_again()
    clears = delayed.clears
    position = cursor.next_unacknowledged(cursor.mark_delete)
    # What is published meanwhile is read as well, or a shared index has been told of it.
    while (window := delayed.window(position)) is not None:
        ledger_id, first = window.place
        free = window.free if window.free is not None else range(first, window.end.entry_id)
        wanted = [(ledger_id, entry_id) for entry_id in islice(free, READ_ENTRIES_MAX)]
        position = window.end if len(wanted) < READ_ENTRIES_MAX else Position(*wanted[-1]).next()
        entries = await ledger.read_positions(wanted, READ_BYTES_MAX) if wanted else []
        if entries and len(entries) < len(wanted):
            position = min(position, entries[-1].position.next())  # the rest was too large for one read
        timed = [entry for entry in entries if _is_timed(entry)]
        await rest()
        # An ended subscription would open an index that no call closes any more.
        if timed and delayed.tracker is None and not subscription.has_ended:
            await delayed.open()
        # A seek, a consumer, or the end came while this waited.
        if delayed.clears != clears or len(subscription.consumers) or subscription.has_ended:
            return False
        if timed:
            delayed.keep_timed(
                [e for e in timed if not (delayed.is_settled(e.position) or delayed.holds(e.position))]
            )
    delayed.was_read(ledger.last_confirmed)
    return True


async def _pass_delivered(delayed: SubscriptionDelays) -> None:
    """Have the index let go of rows of what was delivered before the start: they are in the buckets still,
    the first ones of what is due, and how many of the rest wait could only be estimated.
    """
    for _ in range(LOOKS_MAX):
        if delayed.has_due() or not delayed.awaits_due():
            return
        await trio.sleep(LOOK_AGAIN_S)


def _is_timed(entry: Entry) -> bool:
    if not may_be_delayed(entry.body):
        return False
    metadata = entry.parsed(peek_or_none)
    return metadata is not None and metadata.deliver_at_ms > 0
