"""Making an index as a topic's settings say, with what it has on the bookie; and a subscription's view of it.

This module imports numpy by way of the index, so it is imported when the first message has to wait.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, cast

import trio

from geminga.broker.delays.settings import DelaySettings
from geminga.broker.delays.subscription_delays import SubscriptionDelays
from geminga.clock import Clock
from geminga.errors import GemingaError
from geminga.events.recording import Record, unrecorded
from geminga.managed_ledger.cursor.cursor import Cursor
from geminga.managed_ledger.managed_ledger import ManagedLedger
from geminga.position import LATEST, Position
from geminga.tracker.buckets.bucket_settings import BucketSettings
from geminga.tracker.buckets.bucket_store import BucketOwner, BucketStore, CursorOwner, TopicOwner
from geminga.tracker.buckets.buckets import Buckets
from geminga.tracker.buckets.recovery import Recovery, unacknowledged
from geminga.tracker.buckets.retrying import OffLoop
from geminga.tracker.buckets.tasks import run_buckets
from geminga.tracker.format.stored_bucket import KEY_PREFIX
from geminga.tracker.index.index import IndexSettings
from geminga.tracker.index.view import View

if TYPE_CHECKING:
    from geminga.broker.delays.settings import NewBucketStore

__all__ = [
    "CursorOwner",
    "TopicOwner",
    "forget_buckets",
    "new_buckets",
    "new_recovery",
    "open_view",
    "run_buckets",
]

log = logging.getLogger("geminga.broker")


def new_buckets(
    ledger: ManagedLedger,
    owner: BucketOwner | None,
    settings: DelaySettings,
    clock: Clock,
    *,
    off_loop: OffLoop | None = None,
    new_store: NewBucketStore | None = None,
    record: Record = unrecorded,
) -> Buckets:
    """An index and what it will have on the bookie. Without an owner (a subscription that is not durable)
    everything stays in memory. `new_store` makes the store of its buckets; None: a `BucketStore`.
    """
    # A reader's cursor is in memory: nothing durable could name its buckets, and the next start would sweep
    # them.
    keeps_buckets = settings.keeps_buckets and owner is not None
    # A pause in reading hides what comes behind; it is there for Pulsar's sake, in memory only.
    may_pause = not (keeps_buckets or settings.is_shared)
    index_settings = IndexSettings(
        tick_ms=settings.tick_ms,
        strict=settings.strict,
        # A bucket outlives its tick: policy and settings may be others when its messages are due.
        exact=keeps_buckets,
        fixed_delay_lookahead=settings.fixed_delay_lookahead if may_pause else 0,
        indexes_min=settings.bucket_indexes_min,
        is_shared=settings.is_shared,
    )
    bucket_settings = BucketSettings(
        indexes_min=settings.bucket_indexes_min,
        segment_span_ms=settings.segment_span_ms,
        segment_indexes_max=settings.segment_indexes_max,
        buckets_max=settings.buckets_max,
    )

    def passed_by_all() -> Position:
        """What subscriptions that have not opened a view yet still need of a shared index stays in it."""
        # A view is opened with the first consumer; trimmed before, its messages would have to be read from
        # the backlog.
        return min((cursor.mark_delete for cursor in durable_cursors(ledger)), default=LATEST)

    return Buckets(
        (new_store or BucketStore)(ledger.storage),
        owner,
        clock,
        index_settings,
        bucket_settings if keeps_buckets else None,
        # Handed in by tests, which run it at once so that a simulated crash comes at a chosen step.
        off_loop=off_loop or cast("OffLoop", trio.to_thread.run_sync),
        are_closed_ledgers=ledger.are_closed_ledgers,
        passed_by_all=passed_by_all if settings.is_shared else None,
        record=record,
    )


def new_recovery(
    buckets: Buckets, cursors: Callable[[], Iterable[Cursor]], on_known: Callable[[int, int], None]
) -> Recovery | None:
    """What takes over the buckets that an earlier process has sealed; None: there are none.

    `cursors` are those whose acknowledged entries need not be tracked.
    """
    # No recovery, no unknown ledgers: reads need not ask for each whether it is one.
    if not (buckets.keeps and buckets.named()):
        return None
    return Recovery(buckets, wanted=lambda members: unacknowledged(cursors(), members), on_known=on_known)


def open_view(buckets: Buckets, delays: SubscriptionDelays) -> View:
    cursor = delays.cursor
    view = View(
        buckets.index,
        wake=delays.wake,
        reread=delays.read_again,
        is_acknowledged=delays.is_settled,
        acknowledged_in=cursor.acknowledged_in,
    )
    # Before anything is added: of a shared index the view begins with all that is in there.
    view.mark_delete_moved(cursor.mark_delete)
    return view


def durable_cursors(ledger: ManagedLedger) -> list[Cursor]:
    """Of the topic's subscriptions."""
    return [cursor for cursor in ledger.cursors.values() if cursor.durable and not cursor.is_system]


async def forget_buckets(ledger: ManagedLedger, owner: BucketOwner) -> None:
    """Delete the buckets that a broker of other settings has left here. Errors are only logged."""
    store = BucketStore(ledger.storage)
    named = {key: found for key, found in owner.properties().items() if key.startswith(KEY_PREFIX)}
    if not named:
        return
    try:
        # Names first: a crash in between leaves ledgers that nothing names, and the next start sweeps those.
        await owner.swap({}, named)
        for ledger_id in named.values():
            await store.delete(ledger_id)
    # Leftovers of other settings must not keep a topic from being loaded; the next start tries again.
    except GemingaError as error:
        log.warning("%s: buckets that are of no use now could not be deleted: %s", ledger.name, error)
