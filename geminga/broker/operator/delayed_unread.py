"""Entries that are not in a subscription's index: not read yet, or to be read again.

Any of them may be delayed; the broker learns that when it reads them. So an answer about delayed messages
has to mention these entries, too.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from pyroaring import BitMap

from geminga.broker.delays.window import WINDOW_ENTRIES
from geminga.broker.operator.delayed_statistics import NotRead
from geminga.position import EARLIEST, LATEST, Position

if TYPE_CHECKING:
    from geminga.broker.dispatch.unacked import UnackedBooks
    from geminga.broker.subscription.subscription import Subscription
    from geminga.tracker.buckets.unknown import UnknownLedgers


def holds_back(subscription: Subscription) -> bool:
    """Whether the subscription's consumers are, were last, or may still be of a type that respects delivery
    times.
    """
    return not subscription.consumers.ignores_delays


def pending_of(subscription: Subscription) -> int:
    """Entries that were sent to its consumers and are not acknowledged."""
    if _books_of(subscription) is not None:
        return sum(len(entries) for c in subscription.consumers for entries in c.pending.ledgers.values())
    if not subscription.consumers:
        return 0
    cursor, ledger = subscription.cursor, subscription.topic.ledger
    ledger_id, entry_id = cursor.read_position
    unread = ledger.count_between(Position(ledger_id, entry_id - 1), ledger.last_confirmed)
    return max(subscription.backlog() - unread, 0)


def again_of(subscription: Subscription) -> int:
    """Entries that wait to be redelivered."""
    books = _books_of(subscription)
    return len(books.redelivery) if books is not None else 0


def _books_of(subscription: Subscription) -> UnackedBooks | None:
    dispatcher = subscription.consumers.dispatcher
    return dispatcher.books if dispatcher is not None else None


def unread_of(subscription: Subscription) -> int:
    """Unacknowledged entries that are neither in the index, nor pending, nor to be redelivered."""
    elsewhere = len(subscription.delayed) + pending_of(subscription) + again_of(subscription)
    return max(subscription.backlog() - elsewhere, 0)


def capacity(subscription: Subscription) -> str:
    """The capacity of the index, for users."""
    consumers = subscription.consumers
    if not consumers:
        return "no consumer is connected"
    able = sum(consumer.capacity() > 0 for consumer in consumers)
    return f"{able} of {len(consumers)} connected consumers have permits"


def held_up_by(subscription: Subscription) -> str:
    """What keeps due messages in the index although consumers may have permits, for users; "": nothing."""
    dispatcher = subscription.consumers.dispatcher
    keyed = dispatcher.key_shared if dispatcher is not None else None
    if keyed is None or keyed.look_ahead_left() > 0:
        return ""
    limit, setting = keyed.look_ahead_limit()
    return (
        f"{again_of(subscription)} messages wait for the consumers of their keys, and no more are taken: "
        f"the limit is {limit} for {len(keyed.consumers)} consumers ({setting})"
    )


def _pace(subscription: Subscription) -> str:
    """Whether entries are being read again now, for users. A consumer is connected."""
    books = _books_of(subscription)
    if books is not None and books.blocked:
        return "read again from the topic once consumers have acknowledged more"
    if not any(consumer.capacity() > 0 for consumer in subscription.consumers):
        return f"read again from the topic once a consumer takes more ({capacity(subscription)})"
    return "being read again from the topic"


def not_read(subscription: Subscription) -> Generator[int, None, list[NotRead]]:
    """Why entries are not read yet, with the number for each reason; in total `unread_of`, less what was read
    before the last consumer left. Yields after each 65,536 entries.
    """
    if not holds_back(subscription):
        return []
    delayed = subscription.delayed
    found: list[NotRead] = []
    unknown = delayed.unknown
    if unknown is not None:
        unread = yield from _look_between(subscription, EARLIEST, LATEST, unknown.has)
        if unread.missing:
            text = "the index is being read back from the buckets on disk"
            found.append(_because("recovering", text, unread))
    for first, last in list(delayed.lost_ranges):
        lost = yield from _look_between(subscription, *_bounds(first, last), _known(unknown))
        # Ranges are read again also when nothing is lost: what was not in a bucket at a stop, for example.
        losses = delayed.buckets.losses if delayed.buckets is not None else None
        is_lost = losses is not None and losses.concern(first << 32, (last + 1 << 32) - 1)
        if lost.missing and subscription.consumers:
            missing = "missing in the index, and " if is_lost else ""
            done = f"the index has {lost.total - lost.missing} of {lost.total} entries there"
            found.append(_because("rebuilding", f"{missing}{_pace(subscription)}: {done}", lost))
        elif lost.missing and is_lost:
            text = "missing in the index, not in the topic; they are read again when a consumer connects"
            found.append(_because("lost", text, lost))
    for first, last in list(delayed.left_out_ranges):
        full = yield from _look_between(subscription, *_bounds(first, last), _known(unknown))
        if full.missing:
            text = "the index is full; entries are read again when some of it is written to disk"
            found.append(_because("no-room", text, full))
    return _that_add_up(found, subscription)


def _that_add_up(found: list[NotRead], subscription: Subscription) -> list[NotRead]:
    """The reasons with numbers that add up to what `not_read` promises, including one for the entries without
    a reason.
    """
    # Entries were read and acknowledged between the slices of the look, so its numbers may be too high.
    left = unread_of(subscription)
    reasons = []
    for one in found:
        if entries := min(one.entries, left):
            reasons.append(msgspec.structs.replace(one, entries=entries))
            left -= entries
    if not subscription.consumers:
        # The rest was read before, and is not delayed: statistics and pages do not count it either.
        left = min(left, subscription.delayed.unread_entries())
    if left and subscription.consumers:
        text = f"not reached by the consumers yet: {capacity(subscription)}"
        reasons.append(NotRead(why="unread", text=text, entries=left, of=left))
    elif left:
        text = "no consumer is connected; entries are read for the first one that connects"
        reasons.append(NotRead(why="no-consumer", text=text, entries=left, of=left))
    return reasons


class _Looked(NamedTuple):
    """Unacknowledged entries: how many the subscription does not know, of how many, and the first and last
    ledger of the unknown ones.
    """

    missing: int
    total: int
    ledgers: tuple[int, int]


def _because(why: str, text: str, looked: _Looked) -> NotRead:
    start, end = looked.ledgers
    return NotRead(
        why=why, text=text, entries=looked.missing, of=looked.total, start_ledger=start, end_ledger=end
    )


def _bounds(first_ledger: int, last_ledger: int) -> tuple[Position, Position]:
    """The first position of these ledgers, and the one after their last."""
    return Position(first_ledger, 0), Position(last_ledger + 1, 0)


def _known(unknown: UnknownLedgers | None) -> Callable[[int], bool]:
    return lambda ledger_id: unknown is None or not unknown.has(ledger_id)


def _look_between(
    subscription: Subscription, first: Position, end: Position, is_wanted: Callable[[int], bool]
) -> Generator[int, None, _Looked]:
    """Count from `first` on and before `end`, in wanted ledgers."""
    delayed, cursor, ledger = subscription.delayed, subscription.cursor, subscription.topic.ledger
    missing = total = 0
    ledgers: list[int] = []
    position = cursor.next_unacknowledged(first)
    while position < end:
        ledger_id, entry_id = position
        stop = min(entry_id + WINDOW_ENTRIES, ledger.entries_in(ledger_id))
        if ledger_id == end.ledger_id:
            stop = min(stop, end.entry_id)
        if stop <= entry_id:
            break
        if is_wanted(ledger_id):
            left = BitMap(range(entry_id, stop))
            if (acknowledged := cursor.acknowledged_in(ledger_id, entry_id, stop)) is not None:
                left -= acknowledged
            total += len(left)
            held = delayed.tracker and delayed.tracker.tracked(ledger_id, entry_id, stop - 1)
            if held:
                left -= held
            left -= delayed.given_out.of_ledger(ledger_id)
            missing += len(left)
            if left:
                ledgers = [*ledgers[:1], ledger_id]
        yield stop - entry_id
        position = cursor.next_unacknowledged(Position(ledger_id, stop))
    return _Looked(missing, total, (ledgers[0], ledgers[-1]) if ledgers else (-1, -1))
