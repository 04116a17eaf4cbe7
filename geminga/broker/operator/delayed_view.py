"""What an operator may see of the delayed indexes and change in them; `admin/view/delayed.py` says it all."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import trio

from geminga.broker.dispatch.shared import SharedDispatcher
from geminga.broker.flow.slices import in_slices
from geminga.broker.operator.delayed_statistics import (
    AdoptedBuckets,
    BucketInfo,
    CancelResult,
    DelayedMessage,
    DelayedPage,
    DelayedSummary,
    DueCount,
    DueHistogram,
    NotCancelled,
    SegmentInfo,
    WhyNotDelivered,
)
from geminga.chaos.bucket_damage import Damage, damage_bucket
from geminga.errors import NotAllowed, PeerError, ProtocolError, StorageError
from geminga.limits import MIB
from geminga.managed_ledger.chain.ledger_reads import reached
from geminga.position import Position
from geminga.wire.message_metadata import peek

if TYPE_CHECKING:
    from geminga.broker.delays.index_home import IndexHome
    from geminga.broker.subscription.subscription import Subscription
    from geminga.broker.topic.topics import Topics
    from geminga.managed_ledger.chain.entry import Entry
    from geminga.names import TopicName
    from geminga.tracker.format.rows import Rows
    from geminga.tracker.format.stored_bucket import StoredBucket
    from geminga.tracker.index.interface import DelayedDeliveryTracker
    from geminga.tracker.index.sources import Bucket


CLASSES_MAX = 1000
READ_AT_ONCE = 20
"""Entries that are read for nothing but their times, ..."""
READ_BYTES = 4 * MIB
"""... and what they may take."""


class BeingRead(PeerError):
    """What an index has is not known yet."""

    http_status = 503


class NotDelayed(PeerError):
    """The message is not one that waits for its time."""

    http_status = 404


def _due_ms(subscription: Subscription, entry: Entry) -> int | None:
    """When an entry is due: as it was sent, or as it was changed. None: its metadata cannot be read."""
    try:
        entry.peek = entry.peek or peek(entry.body)
    except ProtocolError:
        return None
    return subscription.delayed.due_ms(entry)


def _capacity(subscription: Subscription) -> str:
    consumers = subscription.consumers
    if not consumers:
        return "no consumer is connected"
    able = sum(consumer.capacity() > 0 for consumer in consumers)
    return f"{able} of {len(consumers)} connected consumers have permits"


def _pending(subscription: Subscription) -> int:
    """Entries that are with its consumers."""
    if isinstance(dispatcher := subscription.dispatcher, SharedDispatcher):
        return sum(len(entries) for c in dispatcher.consumers for entries in c.pending.ledgers.values())
    if not subscription.consumers:
        return 0
    cursor, ledger = subscription.cursor, subscription.topic.ledger
    ledger_id, entry_id = cursor.read_position
    unread = ledger.count_between(Position(ledger_id, entry_id - 1), ledger.last_confirmed)
    return max(subscription.backlog() - unread, 0)


def _holds_back(subscription: Subscription) -> bool:
    """Whether its consumers are, or were last, or may yet be, of a type that waits for due times."""
    return subscription.dispatcher is None or isinstance(subscription.dispatcher, SharedDispatcher)


async def _due(tracker: DelayedDeliveryTracker | None) -> tuple[int, int | None]:
    """How many of those that wait are due, and when the first one is."""
    if tracker is None or not len(tracker):
        return 0, None
    from geminga.tracker.index import eyes
    from geminga.tracker.index.view import View

    assert isinstance(tracker, View)
    return await in_slices(eyes.due_now(tracker))


def _segments(bucket: Bucket) -> Iterator[SegmentInfo]:
    for number in range(bucket.segments):
        yield SegmentInfo(
            number=number,
            first_due_ms=int(bucket.min_ms[number]),
            last_due_ms=int(bucket.max_ms[number]),
            messages=int(bucket.counts[number]),
            bytes=int(bucket.sizes_bytes[number]),
            is_loaded=number < bucket.next_segment or number in bucket.loaded,
        )


async def _decoded(
    home: IndexHome, named: list[tuple[StoredBucket, int]]
) -> dict[tuple[StoredBucket, int], Rows]:
    """Those segments on the bookie that can be read: some hundred microseconds for each on the loop."""
    found = {}
    for stored, number in named:
        with contextlib.suppress(StorageError):  # the broker finds that out by itself
            entry = await home.store.read_segment(stored, number)
            found[stored, number] = stored.directory.decode_segment(number, entry)
        await trio.lowlevel.checkpoint()
    return found


class DelayedOperator:
    """Loads topics if need be."""

    def __init__(self, topics: Topics, *, allows_damage: bool) -> None:
        self._topics = topics
        self._allows_damage = allows_damage

    async def _find(self, topic: TopicName, name: str) -> tuple[Subscription, IndexHome | None]:
        loaded = await self._topics.get(topic, create=False)
        subscription = loaded.subscription(name)
        return subscription, loaded.delays.home_of(subscription.delayed)

    async def _find_read(self, topic: TopicName, name: str) -> tuple[Subscription, IndexHome | None]:
        """The same, with all that its index has. `BeingRead` soon after a start."""
        found, _ = await self._find(topic, name)
        if found.delayed.tracker is None and found.delayed.has_index() and _holds_back(found):
            await found.delayed.open()
        if found.delayed.is_unknown is not None:
            raise BeingRead(f"the delayed index of {topic} is still being read: ask again in a moment")
        return await self._find(topic, name)

    async def _index_of(self, topic: TopicName, name: str) -> IndexHome | None:
        """What the subscription looks at, or would."""
        loaded = await self._topics.get(topic, create=False)
        return loaded.delays.home_of(loaded.subscription(name).delayed) or loaded.delays.shared

    async def summary(self, topic: TopicName, subscription: str) -> DelayedSummary:
        loaded = await self._topics.get(topic, create=False)
        found = loaded.subscription(subscription)
        delayed = found.delayed
        home = loaded.delays.home_of(delayed)
        buckets = home.bucket_statistics() if home is not None else None
        settings = loaded.delays.settings
        due, next_due_ms = await _due(delayed.tracker)
        messages, backlog = len(delayed), found.backlog()
        pending = _pending(found)
        shared = found.dispatcher if isinstance(found.dispatcher, SharedDispatcher) else None
        again = len(shared.redelivery) if shared is not None else 0
        return DelayedSummary(
            messages=messages,
            due=due,
            backlog=backlog,
            pending=pending,
            to_be_sent_again=again,
            unread=max(backlog - messages - pending - again, 0),
            consumers=len(found.consumers),
            holds_back=_holds_back(found),
            next_due_ms=next_due_ms,
            index_bytes=delayed.memory_bytes(),
            keeps_buckets=settings.keeps_buckets,
            is_shared=settings.is_shared,
            buckets=len(home.keeper.stored) if home is not None and home.keeper is not None else 0,
            bucket_bytes=buckets.stored_bytes if buckets is not None else 0,
            is_being_read=delayed.is_unknown is not None
            or (not settings.is_shared and delayed.tracker is None and delayed.has_index()),
        )

    async def histogram(self, topic: TopicName, subscription: str, width_ms: int) -> DueHistogram:
        found, home = await self._find_read(topic, subscription)
        view = found.delayed.tracker
        if view is None or home is None:
            return DueHistogram(width_ms=width_ms, classes=[])
        from geminga.tracker.index.histogram import Histogram
        from geminga.tracker.index.view import View

        assert isinstance(view, View)
        drawing = Histogram(view, width_ms, CLASSES_MAX)
        await in_slices(drawing.look())
        read = await _decoded(home, drawing.to_read)
        await in_slices(drawing.count(read))
        return DueHistogram(
            width_ms=drawing.width_ms,
            classes=[
                DueCount(
                    from_ms=one.start_ms,
                    to_ms=one.start_ms + drawing.width_ms,
                    messages=one.positions,
                    is_estimated=one.is_estimated,
                )
                for one in drawing.classes()
            ],
        )

    async def messages(
        self, topic: TopicName, subscription: str, start: Position, count_max: int
    ) -> DelayedPage:
        found, home = await self._find_read(topic, subscription)
        view = found.delayed.tracker
        if view is None or home is None:
            return DelayedPage(messages=[], next=None)
        from geminga.tracker.index import eyes
        from geminga.tracker.index.view import View

        assert isinstance(view, View)
        places = await in_slices(eyes.page(view, start, count_max + 1))
        following = places[count_max] if len(places) > count_max else None
        # In memory the index keeps times no more exactly than it has to; the entries have them all.
        known = home.index.rules.exact
        due_ms = await in_slices(eyes.due_times_ms(view, places[:count_max])) if known else {}
        unknown = [place for place in places[:count_max] if place not in due_ms]
        while unknown:
            part = unknown[:READ_AT_ONCE]
            entries = await found.topic.ledger.read_positions(part, READ_BYTES)
            for entry in entries:
                if (sent_ms := _due_ms(found, entry)) is not None:
                    due_ms[entry.position] = sent_ms
            unknown = unknown[reached(part, entries, READ_BYTES) :]
        messages = [
            DelayedMessage(ledger_id=ledger_id, entry_id=entry_id, due_ms=due_ms.get((ledger_id, entry_id)))
            for ledger_id, entry_id in places[:count_max]
        ]
        following_text = None if following is None else f"{following[0]}:{following[1]}"
        return DelayedPage(messages=messages, next=following_text)

    async def why(self, topic: TopicName, subscription: str, position: Position) -> WhyNotDelivered:
        found, _ = await self._find(topic, subscription)
        return await self._why(found, position)

    async def _why(self, found: Subscription, position: Position) -> WhyNotDelivered:
        ledger_id, entry_id = position
        place = f"{ledger_id}:{entry_id}"
        if entry_id >= found.topic.ledger.entries_in(ledger_id):
            return WhyNotDelivered(reason="no-such-entry", text=f"there is no message {place}")
        if found.cursor.is_acknowledged(position):
            return WhyNotDelivered(reason="acknowledged", text=f"{place} is acknowledged")
        if isinstance(dispatcher := found.dispatcher, SharedDispatcher):
            for consumer in dispatcher.consumers:
                if consumer.pending.get(ledger_id, entry_id):
                    text = f"{place} was sent to the consumer {consumer.name} and is not acknowledged yet"
                    return WhyNotDelivered(reason="pending", text=text)
            if position in dispatcher.redelivery:
                text = f"{place} goes out as soon as a consumer takes more: {_capacity(found)}"
                return WhyNotDelivered(reason="to-be-sent-again", text=text)
        if found.delayed.holds(position):
            return await self._why_delayed(found, position)
        text = f"{place} has not been read yet: {_capacity(found)}"
        return WhyNotDelivered(reason="not-read-yet", text=text)

    async def _why_delayed(self, found: Subscription, position: Position) -> WhyNotDelivered:
        place = f"{position.ledger_id}:{position.entry_id}"
        entries = await found.topic.ledger.read_positions([position])
        due_ms = _due_ms(found, entries[0]) if entries else None
        now_ms = found.clock.now_ms()
        if due_ms is None or due_ms <= now_ms:
            text = f"{place} is due, and goes out as soon as a consumer takes more: {_capacity(found)}"
            return WhyNotDelivered(reason="due", text=text, due_ms=due_ms)
        text = f"{place} waits for another {(due_ms - now_ms) / 1000:.3f} s"
        return WhyNotDelivered(reason="delayed", text=text, due_ms=due_ms)

    async def buckets(
        self, topic: TopicName, subscription: str
    ) -> Iterator[tuple[BucketInfo, Iterator[SegmentInfo]]]:
        home = await self._index_of(topic, subscription)
        if home is None:
            return iter(())
        index = home.index
        return (
            (
                BucketInfo(
                    start_ledger=stored.start_ledger,
                    end_ledger=stored.end_ledger,
                    ledger_id=stored.ledger_id,
                    messages=index.live_count(stored.first_code, stored.last_code),
                    bytes=stored.bytes,
                    segments=[],
                ),
                _segments(bucket),
            )
            for stored, bucket in list(index.buckets.items())
        )

    async def bucket_entries(self, topic: TopicName, subscription: str, ledger_id: int) -> bytes | None:
        home = await self._index_of(topic, subscription)
        if home is None or home.keeper is None or ledger_id not in home.keeper.buckets.serving:
            return None
        from geminga.tracker.format.bucket_bundle_format import encode_bundle

        entries = await home.store.read_each(ledger_id)
        return await trio.to_thread.run_sync(encode_bundle, [entries])

    async def adopt(self, topic: TopicName, subscription: str, bundle: bytes) -> AdoptedBuckets:
        loaded = await self._topics.get(topic, create=False)
        found = loaded.subscription(subscription)
        # It imports numpy, which a start must not.
        module = await trio.to_thread.run_sync(
            importlib.import_module, "geminga.broker.operator.delayed_adopt"
        )
        adopted: AdoptedBuckets = await module.adopt_buckets(loaded, found, bundle)
        return adopted

    async def cancel(
        self, topic: TopicName, subscription: str, positions: Sequence[Position]
    ) -> CancelResult:
        found, _ = await self._find_read(topic, subscription)
        places = list(dict.fromkeys(positions))
        unread = {p for p in places if not found.delayed.holds(p) and await self._waits_unread(found, p)}
        # Reading took a while.
        waiting = [
            p for p in places if (p in unread or found.delayed.holds(p)) and not found.delayed.is_settled(p)
        ]
        found.delayed.passed(waiting)
        found.cursor.acknowledge(waiting)
        if found.notes is not None:
            found.notes.acked(None, waiting)
        if waiting and found.cursor.durable:
            await found.cursor.persist()
        others = [
            NotCancelled(message=f"{p.ledger_id}:{p.entry_id}", why=(await self._why(found, p)).text)
            for p in places
            if p not in waiting
        ]
        return CancelResult(cancelled=len(waiting), not_cancelled=others)

    async def _waits_unread(self, found: Subscription, position: Position) -> bool:
        """Whether a message that no index knows has a time that has not come: no consumer has come yet to
        have it read, or it is about to be.
        """
        if not _holds_back(found) or found.delayed.is_settled(position):
            return False
        entries = await found.topic.ledger.read_positions([position])
        due_ms = _due_ms(found, entries[0]) if entries else None
        return due_ms is not None and due_ms > found.clock.now_ms()

    async def reschedule(
        self, topic: TopicName, subscription: str, position: Position, due_ms: int | None
    ) -> None:
        found, home = await self._find_read(topic, subscription)
        if home is None or not found.delayed.holds(position):
            why = await self._why(found, position)
            raise NotDelayed(f"{position} does not wait on {subscription}: {why.text}")
        home.forget_overrides(home.is_acknowledged_by_all)
        when_ms = found.clock.now_ms() if due_ms is None else due_ms
        if not await home.reschedule(position, when_ms):
            raise NotDelayed(f"{position} does not wait on {subscription}: it is due")

    async def damage(
        self, topic: TopicName, subscription: str, how: Damage, ledger_id: int | None
    ) -> int | None:
        if not self._allows_damage:
            raise NotAllowed("buckets are damaged only where the broker was started with --chaos")
        _, home = await self._find(topic, subscription)
        if home is None or home.keeper is None:
            return None
        return await damage_bucket(home.keeper.buckets, home.index, how, ledger_id)
