"""Verifies all buckets of the delayed index, of one topic or of every topic with buckets.

Reads the buckets that the records of topics and cursors name from the bookie, and loads no topic for that.
If a bucket in use is missing or damaged, it is lost at once, so that its messages are read again
(`tracker/buckets/verify.py`). A bucket of a topic that is not loaded stays named, and the load finds the
damage.
"""

from __future__ import annotations

import importlib
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec
import trio

from geminga.broker.flow.slices import Pace
from geminga.errors import SubscriptionNotFound, TopicNotFound
from geminga.managed_ledger.cursor.bucket_properties import DELAYED_PREFIX
from geminga.managed_ledger.cursor.cursor_ledger import Storage
from geminga.metadata import records
from geminga.metadata.records import CursorRecord, ManagedLedgerRecord
from geminga.names import NamespaceName, Partitions, TopicName

if TYPE_CHECKING:
    from geminga.broker.topic.rooms import Rooms
    from geminga.broker.topic.topics import Topics
    from geminga.tracker.buckets.buckets import Buckets
    from geminga.tracker.buckets.verify import Verdict

Then = Literal["", "being-read-again", "read-again-when-loaded", "tried-again"]


class WrongPart(msgspec.Struct, rename="camel", kw_only=True):
    segment: int | None
    """None: the directory, or the whole bucket."""
    text: str


class VerifiedBucket(msgspec.Struct, rename="camel", kw_only=True):
    topic: str
    subscription: str | None
    """The subscription that owns the index; None for the shared index."""
    name: str
    """The bucket's range, as in the name of its property."""
    ledger_id: int
    state: Literal["ok", "lost", "damaged", "unreadable"]
    segments: int
    messages: int
    bytes: int
    wrong: list[WrongPart]
    then: Then
    """What happens to the messages of a bucket that is not ok."""


class _Named(NamedTuple):
    """A property of a topic's record (subscription None) or of a cursor's."""

    topic: TopicName
    subscription: str | None
    key: str
    ledger_id: int


class DelayedVerifier:
    def __init__(self, topics: Topics, rooms: Rooms) -> None:
        self._topics = topics
        self._rooms = rooms

    async def verify(
        self, topic: TopicName | None, subscription: str | None
    ) -> AsyncGenerator[VerifiedBucket, None]:
        """Verify one bucket after the other, and yield each result; all topics if none is named. May leave
        out buckets that are created or deleted meanwhile. Raises TopicNotFound, SubscriptionNotFound before
        the first result.
        """
        if topic is not None:
            names: Iterable[TopicName | None] = await self._named_topics(topic, subscription)
        else:
            names = self._topics_of(await self._rooms.namespaces.all_namespaces())
        for name in names:
            await trio.lowlevel.checkpoint()
            if name is None:
                continue
            named, pace = [], Pace()
            for one in self._named_by(name, subscription):
                await pace.row()
                if one is not None:
                    named.append(one)
            for one in named:
                if (found := await self._look(one)) is not None:
                    yield found

    async def _named_topics(self, topic: TopicName, subscription: str | None) -> list[TopicName]:
        partitions = self._topics.catalog.partitions(topic)
        found, has_subscription, pace = [], False, Pace()
        for name in Partitions(topic, partitions) if partitions else (topic,):
            await pace.row()
            if self._topics.catalog.exists(name):
                found.append(name)
                has_subscription |= subscription is None or self._cursor(name, subscription) is not None
        if not found and not partitions:
            raise TopicNotFound(f"Topic {topic} does not exist")
        if subscription is not None and not has_subscription:
            raise SubscriptionNotFound(f"Subscription {subscription} of {topic} does not exist")
        return found

    def _topics_of(self, namespaces: Iterable[str]) -> Iterator[TopicName | None]:
        """None at each namespace: there may be many without topics."""
        for namespace in namespaces:
            yield None
            for name in self._topics.catalog.names.plain_names_in(NamespaceName.parse(namespace)):
                yield TopicName.parse(name)

    def _cursor(self, topic: TopicName, subscription: str) -> CursorRecord | None:
        path = records.cursor_path(records.managed_ledger_path(topic), subscription)
        stored = self._rooms.metadata.get(path)
        return None if stored is None else records.decode(CursorRecord, stored.value, path)

    def _named_by(self, topic: TopicName, subscription: str | None) -> Iterator[_Named | None]:
        """None after each cursor: there may be many that name nothing."""
        from geminga.tracker.format.stored_bucket import range_of_key

        metadata, path = self._rooms.metadata, records.managed_ledger_path(topic)

        def named(owner: str | None, properties: Mapping[str, int] | Mapping[str, str]) -> Iterator[_Named]:
            for key, value in properties.items():
                if key.startswith(DELAYED_PREFIX) and range_of_key(key) and str(value).isdecimal():
                    yield _Named(topic, owner, key, int(value))

        if (stored := metadata.get(path)) is not None:
            yield from named(None, records.decode(ManagedLedgerRecord, stored.value, path).properties)
        for component in metadata.children(path):
            owner = records.cursor_of(component)
            if subscription in (None, owner) and (record := self._cursor(topic, owner)) is not None:
                yield from named(owner, record.properties)
            yield None

    def _is_named(self, one: _Named) -> bool:
        return one in self._named_by(one.topic, one.subscription)

    def _buckets(self, one: _Named) -> Buckets | None:
        """The buckets of the open index; None if it is not open."""
        loaded = self._topics.loaded.get(str(one.topic))
        if loaded is None or loaded.closing:
            return None
        if one.subscription is None:
            return loaded.delays.shared
        subscription = loaded.subscriptions.get(one.subscription)
        return None if subscription is None else subscription.delayed.own

    async def _look(self, one: _Named) -> VerifiedBucket | None:
        """Verify one bucket; None if no record names it any longer."""
        while True:
            buckets = self._buckets(one)
            if buckets is not None and (bucket := buckets.serving.get(one.ledger_id)) is not None:
                from geminga.tracker.buckets.verify import inspect

                verdict = await inspect(buckets, bucket, "verify")
                then: Then = "being-read-again"
            else:
                verdict = await self._look_at_closed(one)
                buckets = self._buckets(one)
                if buckets is not None and one.ledger_id in buckets.serving:
                    continue  # it has been taken over meanwhile
                then = "read-again-when-loaded"
            break
        if verdict.state == "ok" and not verdict.segments:
            return None
        if then == "read-again-when-loaded" and not self._is_named(one):
            return None
        return _answer(one, verdict, then)

    async def _look_at_closed(self, one: _Named) -> Verdict:
        """Verify a bucket that is not in use, because its topic or its index is not open."""
        # It imports numpy, which a start must not.
        verify = await trio.to_thread.run_sync(importlib.import_module, "geminga.tracker.buckets.verify")
        from geminga.tracker.buckets.bucket_store import BucketStore
        from geminga.tracker.buckets.retrying import in_thread
        from geminga.tracker.format.stored_bucket import range_of_key

        rooms = self._rooms
        storage = Storage(
            str(one.topic),
            records.managed_ledger_path(one.topic),
            rooms.bookie,
            rooms.metadata,
            rooms.ledger_ids,
            rooms.clock,
            rooms.ledger_settings,
        )
        verifier = verify.Verifier(BucketStore(storage), in_thread)
        verdict: Verdict = await verifier.look(one.ledger_id, range_of_key(one.key), None)
        return verdict


def _answer(one: _Named, verdict: Verdict, then: Then) -> VerifiedBucket:
    from geminga.tracker.format.stored_bucket import KEY_PREFIX

    if verdict.state in ("ok", "unreadable"):
        then = "" if verdict.state == "ok" else "tried-again"
    return VerifiedBucket(
        topic=str(one.topic),
        subscription=one.subscription,
        name=one.key.removeprefix(KEY_PREFIX),
        ledger_id=one.ledger_id,
        state=verdict.state,
        segments=verdict.segments,
        messages=verdict.rows,
        bytes=verdict.bytes,
        wrong=[WrongPart(segment=part.segment, text=part.text) for part in verdict.wrong],
        then=then,
    )
