"""The operator's queries and changes of delayed indexes; `admin/view/delayed.py` documents each.

For a partitioned topic the results of all partitions are combined. A message or a bucket is looked up in the
partition that has its ledger, because the broker assigns each ledger id once.
"""

from __future__ import annotations

import importlib
from collections.abc import AsyncGenerator, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import trio

from geminga.broker.delays.topic_delays import precision_ms_of
from geminga.broker.flow.slices import Pace, in_slices
from geminga.broker.operator import delayed_content
from geminga.broker.operator.delayed_content import NoSuchBucket, find_bucket
from geminga.broker.operator.delayed_looks import (
    CLASSES_MAX,
    ListedPart,
    Looked,
    bucket_rows_of,
    due_ms_of,
    due_times_of,
    histogram_of,
    positions_of,
    summary_of,
    why_not_read,
)
from geminga.broker.operator.delayed_statistics import (
    AdoptedBuckets,
    BucketContent,
    BucketRows,
    CancelResult,
    DelayedMessage,
    DelayedPage,
    DelayedPrecision,
    DelayedSummary,
    DueCount,
    DueHistogram,
    NotCancelled,
    WhyNotDelivered,
)
from geminga.broker.operator.delayed_unread import capacity, held_up_by, holds_back
from geminga.broker.operator.delayed_verify import DelayedVerifier, VerifiedBucket
from geminga.chaos.bucket_damage import Damage, damage_bucket
from geminga.errors import NotAllowed, PeerError, SubscriptionNotFound
from geminga.names import Partitions
from geminga.position import Position

if TYPE_CHECKING:
    from geminga.broker.subscription.subscription import Subscription
    from geminga.broker.topic.topics import Topics
    from geminga.names import TopicName
    from geminga.tracker.format.stored_bucket import StoredBucket


PLACES_PER_TURN = 100
"""Lookups of single messages between two checkpoints: about a millisecond."""


class BeingRead(PeerError):
    """The content of an index is not known yet."""

    http_status = 503


PAST_MS_MAX = 10_000
"""A request takes a while: a time that has passed by so little is not refused."""


class InThePast(PeerError):
    """A message was to be given another time, which has passed."""

    http_status = 400


class NotDelayed(PeerError):
    """The message does not wait for its time."""

    http_status = 404


class DelayedOperator:
    """Loads topics if necessary."""

    def __init__(
        self, topics: Topics, *, allows_damage: bool, verifier: DelayedVerifier | None = None
    ) -> None:
        self._topics = topics
        self._allows_damage = allows_damage
        self._verifier = verifier

    # -- which subscriptions ---------------------------------------------------------------------------------

    async def _each(self, topic: TopicName, name: str) -> list[Looked]:
        """The subscription of a topic, or of each of its partitions that have it. At least one."""
        partitions = self._topics.catalog.partitions(topic)
        if not partitions:
            loaded = await self._topics.get(topic, create=False)
            return [Looked(loaded, loaded.subscription(name), None)]
        found = []
        pace = Pace()
        for number, part in enumerate(Partitions(topic, partitions)):
            await pace.row()
            if self._topics.catalog.exists(part):
                loaded = await self._topics.get(part, create=False)
                if name in loaded.subscriptions:
                    found.append(Looked(loaded, loaded.subscription(name), number))
        if not found:
            raise SubscriptionNotFound(f"no partition of {topic} has a subscription {name}")
        return found

    async def _opened(self, topic: TopicName, name: str) -> list[Looked]:
        """As `_each`, with the view of each subscription's index open if there is one."""
        found = await self._each(topic, name)
        for looked in found:
            await looked.open()
        return found

    async def _holder(self, topic: TopicName, name: str, ledger_id: int) -> Looked:
        """The one whose topic has that ledger; the first if none has it."""
        return _holder_among(await self._each(topic, name), ledger_id)

    # -- looks -----------------------------------------------------------------------------------------------

    async def summary(self, topic: TopicName, subscription: str) -> DelayedSummary:
        found = await self._opened(topic, subscription)
        parts = [await summary_of(looked) for looked in found]
        if found[0].partition is None:
            return parts[0]
        return DelayedSummary(
            messages=sum(one.messages for one in parts),
            due=sum(one.due for one in parts),
            backlog=sum(one.backlog for one in parts),
            pending=sum(one.pending for one in parts),
            to_be_sent_again=sum(one.to_be_sent_again for one in parts),
            unread=sum(one.unread for one in parts),
            consumers=sum(one.consumers for one in parts),
            held_up_by=next((one.held_up_by for one in parts if one.held_up_by), ""),
            holds_back=any(one.holds_back for one in parts),
            next_due_ms=min((one.next_due_ms for one in parts if one.next_due_ms is not None), default=None),
            index_bytes=sum(one.index_bytes for one in parts),
            keeps_buckets=parts[0].keeps_buckets,
            is_shared=parts[0].is_shared,
            buckets=sum(one.buckets for one in parts),
            bucket_bytes=sum(one.bucket_bytes for one in parts),
            is_being_read=any(one.is_being_read for one in parts),
            not_read=[reason for one in parts for reason in one.not_read],
            partitions=len(parts),
        )

    async def histogram(self, topic: TopicName, subscription: str, width_ms: int) -> DueHistogram:
        found = await self._opened(topic, subscription)
        return put_together([await histogram_of(looked, width_ms) for looked in found], width_ms)

    async def messages(
        self, topic: TopicName, subscription: str, start: Position, count_max: int
    ) -> DelayedPage:
        found = await self._opened(topic, subscription)
        reasons = [reason for looked in found for reason in await why_not_read(looked)]
        ordered = [
            (position, looked)
            for looked in found
            for position in await positions_of(looked, start, count_max + 1)
        ]
        ordered.sort(key=lambda pair: pair[0])
        following = None if len(ordered) <= count_max else "{}:{}".format(*ordered[count_max][0])
        due_ms: dict[tuple[int, int], int] = {}
        for looked in found:
            due_ms |= await due_times_of(
                looked, [position for position, one in ordered[:count_max] if one is looked]
            )
        messages = [
            DelayedMessage(ledger_id=position[0], entry_id=position[1], due_ms=due_ms.get(position))
            for position, _ in ordered[:count_max]
        ]
        return DelayedPage(messages=messages, next=following, not_read=reasons)

    async def buckets(self, topic: TopicName, subscription: str) -> Iterator[ListedPart]:
        found = await self._opened(topic, subscription)
        return chain.from_iterable([await bucket_rows_of(looked) for looked in found])

    async def _bucket(self, topic: TopicName, subscription: str, name: str) -> tuple[Looked, StoredBucket]:
        for looked in await self._opened(topic, subscription):
            if (stored := find_bucket(looked, name)) is not None:
                return looked, stored
        raise NoSuchBucket(f"there is no bucket {name} (geminga delayed buckets lists those that there are)")

    async def bucket(self, topic: TopicName, subscription: str, name: str) -> BucketContent:
        return await delayed_content.content_of(*await self._bucket(topic, subscription, name))

    async def bucket_rows(
        self, topic: TopicName, subscription: str, name: str, start: int, count_max: int
    ) -> BucketRows:
        looked, stored = await self._bucket(topic, subscription, name)
        return await delayed_content.rows_of(looked, stored, start, count_max)

    async def why(self, topic: TopicName, subscription: str, position: Position) -> WhyNotDelivered:
        looked = await self._holder(topic, subscription, position.ledger_id)
        await looked.open()
        return await self._why(looked.subscription, position)

    async def _why(self, found: Subscription, position: Position) -> WhyNotDelivered:
        ledger_id, entry_id = position
        message = f"{ledger_id}:{entry_id}"
        if entry_id >= found.topic.ledger.entries_in(ledger_id):
            return WhyNotDelivered(reason="no-such-entry", text=f"there is no message {message}")
        if found.cursor.is_acknowledged(position):
            return WhyNotDelivered(reason="acknowledged", text=f"{message} is acknowledged")
        dispatcher = found.consumers.dispatcher
        if dispatcher is not None and (books := dispatcher.books) is not None:
            for consumer in found.consumers:
                if consumer.pending.get(ledger_id, entry_id):
                    text = f"{message} was sent to the consumer {consumer.name} and is not acknowledged yet"
                    return WhyNotDelivered(reason="pending", text=text)
            if position in books.redelivery:
                text = f"{message} goes out as soon as a consumer takes more: {capacity(found)}"
                return WhyNotDelivered(reason="to-be-sent-again", text=text)
        due_ms = await _due_ms(found, position)
        if found.delayed.holds(position) or (due_ms and holds_back(found)):
            return self._why_delayed(found, message, due_ms)
        text = f"{message} has not been read yet: {capacity(found)}"
        return WhyNotDelivered(reason="not-read-yet", text=text)

    def _why_delayed(self, found: Subscription, message: str, due_ms: int | None) -> WhyNotDelivered:
        now_ms = found.clock.now_ms()
        if due_ms is None or due_ms <= now_ms:
            text = f"{message} is due, and goes out as soon as a consumer takes more: {capacity(found)}"
            if held_up := held_up_by(found):
                text = f"{message} is due, but {held_up}"
            return WhyNotDelivered(reason="due", text=text, due_ms=due_ms)
        text = f"{message} waits for another {(due_ms - now_ms) / 1000:.3f} s"
        return WhyNotDelivered(reason="delayed", text=text, due_ms=due_ms)

    # -- changes ---------------------------------------------------------------------------------------------

    async def bucket_entries(self, topic: TopicName, subscription: str, ledger_id: int) -> bytes | None:
        for looked in await self._each(topic, subscription):
            buckets = looked.buckets_to_be
            if buckets is not None and ledger_id in buckets.serving:
                break
        else:
            return None
        from geminga.tracker.format.bucket_bundle_format import encode_bundle

        entries = await buckets.store.read_each(ledger_id)
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

    def verify(
        self, topic: TopicName | None, subscription: str | None
    ) -> AsyncGenerator[VerifiedBucket, None]:
        assert self._verifier is not None
        return self._verifier.verify(topic, subscription)

    async def cancel(
        self, topic: TopicName, subscription: str, positions: Sequence[Position]
    ) -> CancelResult:
        found = await self._each(topic, subscription)
        cancelled, others = 0, []
        by_partition: dict[int | None, list[Position]] = {}
        for position in dict.fromkeys(positions):
            partition = _holder_among(found, position.ledger_id).partition
            by_partition.setdefault(partition, []).append(position)
        for looked in found:
            if not (in_partition := by_partition.get(looked.partition)):
                continue
            await _read_wholly(looked)
            some = await self._cancel(looked.subscription, in_partition)
            cancelled += some.cancelled
            others += some.not_cancelled
        return CancelResult(cancelled=cancelled, not_cancelled=others)

    async def _cancel(self, found: Subscription, positions: list[Position]) -> CancelResult:
        unread = set()
        async for position in _by_turns(positions):
            if not found.delayed.holds(position) and await self._waits_unread(found, position):
                unread.add(position)
        # Reading took a while.
        waiting = [
            p
            for p in positions
            if (p in unread or found.delayed.holds(p)) and not found.delayed.is_settled(p)
        ]
        found.acks.let_go(waiting)
        if waiting and found.cursor.durable:
            await found.cursor.persist()
        cancelled, others = set(waiting), []
        async for position in _by_turns([position for position in positions if position not in cancelled]):
            why = (await self._why(found, position)).text
            others.append(NotCancelled(message=f"{position.ledger_id}:{position.entry_id}", why=why))
        return CancelResult(cancelled=len(waiting), not_cancelled=others)

    async def _waits_unread(self, found: Subscription, position: Position) -> bool:
        """Whether a message that no index knows has a time, due or not: no consumer has connected to have it
        read, or the message is about to be read.
        """
        if not holds_back(found) or found.delayed.is_settled(position):
            return False
        return bool(await _due_ms(found, position))

    async def reschedule(
        self, topic: TopicName, subscription: str, position: Position, due_ms: int | None
    ) -> None:
        looked = await self._holder(topic, subscription, position.ledger_id)
        await _read_wholly(looked)
        found, buckets = looked.subscription, looked.buckets
        if buckets is None or not found.delayed.holds(position):
            why = await self._why(found, position)
            raise NotDelayed(f"{position} does not wait on {subscription}: {why.text}")
        now_ms = found.clock.now_ms()
        if due_ms is not None and due_ms < now_ms - PAST_MS_MAX:
            from geminga.units import time_text

            raise InThePast(
                f"{time_text(due_ms)} is in the past, now is {time_text(now_ms)}: expedite it instead"
            )
        when_ms = now_ms if due_ms is None else due_ms
        await in_slices(buckets.forget_overrides(looked.topic.delays.is_acknowledged_by_all))
        if not await buckets.reschedule(position, when_ms):
            raise NotDelayed(f"{position} does not wait on {subscription}: it is due")

    async def precision(self, topic: TopicName, subscription: str) -> DelayedPrecision:
        found = await self._each(topic, subscription)
        each = {looked.partition: precision_ms_of(looked.subscription.delayed) for looked in found}
        is_one = len(set(each.values())) == 1
        return DelayedPrecision(
            precision_ms=each[found[0].partition] if is_one else None,
            by_partition=None if is_one else {str(partition): ms for partition, ms in each.items()},
            holds_back=any(holds_back(looked.subscription) for looked in found),
        )

    async def set_precision(self, topic: TopicName, subscription: str, precision_ms: int | None) -> None:
        found = await self._each(topic, subscription)
        if not all(looked.subscription.cursor.durable for looked in found):
            raise NotAllowed(
                f"{subscription} is not durable: a precision is kept with durable subscriptions only"
            )
        for looked in found:
            await looked.topic.delays.set_precision(looked.subscription.delayed, precision_ms)

    async def damage(
        self,
        topic: TopicName,
        subscription: str,
        how: Damage,
        ledger_id: int | None,
        *,
        quietly: bool = False,
    ) -> int | None:
        if not self._allows_damage:
            raise NotAllowed("buckets are damaged only where the broker was started with --chaos")
        for looked in await self._each(topic, subscription):
            buckets = looked.buckets_to_be
            if buckets is not None and buckets.keeps:
                damaged = await damage_bucket(buckets, how, ledger_id, quietly=quietly)
                if damaged is not None:
                    return damaged
        return None


async def _by_turns(positions: Sequence[Position]) -> AsyncGenerator[Position, None]:
    """Process items one after the other, with a checkpoint after some of them. A request may
    name thousands.
    """
    for number, position in enumerate(positions, 1):
        yield position
        if number % PLACES_PER_TURN == 0:
            await trio.lowlevel.checkpoint()


async def _due_ms(found: Subscription, position: Position) -> int | None:
    """0: it has no time. None: it cannot be read, or is gone."""
    entries = await found.topic.ledger.read_positions([position])
    return due_ms_of(found, entries[0]) if entries else None


def _holder_among(found: Sequence[Looked], ledger_id: int) -> Looked:
    having = (looked for looked in found if looked.topic.ledger.entries_in(ledger_id))
    return next(having, found[0])


async def _read_wholly(looked: Looked) -> None:
    """Wait until the subscription's index is complete. Raises `BeingRead` soon after a start."""
    await looked.open()
    if looked.subscription.delayed.unknown is not None:
        raise BeingRead(
            f"the delayed index of {looked.topic.name} is still being read: ask again in a moment"
        )


def put_together(parts: Sequence[DueHistogram], width_ms: int) -> DueHistogram:
    """Combine histograms for the same requested width into one of at most `CLASSES_MAX` classes. Each
    histogram has doubled its width as often as necessary, so classes nest.
    """
    if len(parts) == 1:
        return parts[0]
    width_ms = max((one.width_ms for one in parts), default=width_ms)
    while True:
        counts: dict[int, int] = {}
        estimated: set[int] = set()
        for one in chain.from_iterable(part.classes for part in parts):
            start = one.from_ms // width_ms
            counts[start] = counts.get(start, 0) + one.messages
            if one.is_estimated:
                estimated.add(start)
        if len(counts) <= CLASSES_MAX:
            break
        width_ms *= 2
    classes = [
        DueCount(
            from_ms=n * width_ms, to_ms=(n + 1) * width_ms, messages=counts[n], is_estimated=n in estimated
        )
        for n in sorted(counts)
    ]
    reasons = [reason for part in parts for reason in part.not_read]
    return DueHistogram(width_ms=width_ms, classes=classes, not_read=reasons)
