"""All topics of the broker: found, loaded once, made when that is allowed, closed, deleted."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import trio

from geminga.broker.schemas.registry import SchemaRegistry
from geminga.broker.topic.inactivity import IdleDeletions, expire_subscriptions, is_to_go
from geminga.broker.topic.topic import Topic
from geminga.errors import (
    BadVersion,
    Conflict,
    ConsumerBusy,
    GemingaError,
    KeyMissing,
    NotAllowed,
    ServiceNotReady,
    TopicNotFound,
)
from geminga.managed_ledger.chain.tasks import TaskGroup
from geminga.managed_ledger.managed_ledger import ManagedLedger
from geminga.metadata import records
from geminga.metadata.records import PartitionedTopicRecord
from geminga.names import TopicDomain, TopicName, decode_name

if TYPE_CHECKING:
    from geminga.broker.topic.rooms import Rooms
    from geminga.names import NamespaceName

log = logging.getLogger("geminga.broker")


PARTITIONS_MAX = 10_000
"""Of one topic. Each is a topic of its own; more than this is a slip of the keyboard."""
CLOSED_AT_ONCE = 500
"""Of all topics when the broker stops: enough to share syncs, and tasks for all of them would cost more."""


class _Loading:
    """One load under way, which any number of callers wait for."""

    __slots__ = ("create", "done", "error", "topic")

    def __init__(self, create: bool) -> None:
        self.create = create
        self.done = trio.Event()
        self.topic: Topic | None = None
        self.error: GemingaError | None = None


class Topics:
    """The registry. A topic is loaded by the first who asks and stays until it is closed or deleted."""

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms
        self._nursery: trio.Nursery | None = None
        self._loading: dict[str, _Loading] = {}
        self.loaded: dict[str, Topic] = {}
        self._closing = False
        self.schemas = SchemaRegistry(rooms.metadata, rooms.clock)
        self.listing = trio.Lock()
        """Held while a client's list of names is gathered: one at a time has its slices of the loop."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Own the tasks of all topics. A topic that breaks for a reason of ours ends the broker, loudly."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self._start_rounds(nursery)
            task_status.started()
            try:
                await self._measure_rates()
            finally:
                self._closing = True
                for topic in self.loaded.values():
                    topic.tasks.cancel()

    def _start_rounds(self, nursery: trio.Nursery) -> None:
        """What is done on all topics now and then."""
        settings = self._rooms.settings
        nursery.start_soon(self._rooms.tail_cache.run_forever)
        nursery.start_soon(self._every, settings.trim_interval_s, Topic.trim)
        nursery.start_soon(self._every, settings.expiry_interval_s, Topic.expire)
        idle = IdleDeletions()
        delete = partial(self._delete_if_idle, deletions=idle)
        nursery.start_soon(self._every, settings.inactive_topics_interval_s, delete, idle.tell)
        nursery.start_soon(self._every, settings.subscription_expiry_interval_s, expire_subscriptions)
        nursery.start_soon(self._every, settings.dedup_upkeep_s, Topic.upkeep_deduplication)
        if settings.write_timeout_s:
            nursery.start_soon(self._watch_writes, settings.write_timeout_s)
        if settings.checks_quotas:
            nursery.start_soon(self._every, settings.quota_interval_s, Topic.enforce_quotas)

    async def _measure_rates(self) -> None:
        while True:
            started_s = trio.current_time()
            await trio.sleep(self._rooms.settings.rates_interval_s)
            for topic in tuple(self.loaded.values()):
                topic.measure(trio.current_time() - started_s)

    async def _watch_writes(self, timeout_s: float) -> None:
        """Give up producers whose entries are not durable in time; looks only while something is not."""
        memory, clock = self._rooms.publish_memory, self._rooms.clock
        while True:
            await trio.sleep(min(1.0, timeout_s / 4))
            if memory.pending_bytes:
                accepted_before_s = clock.monotonic_s() - timeout_s
                for topic in tuple(self.loaded.values()):
                    topic.publishing.fail_overdue(accepted_before_s)

    async def _every(
        self,
        interval_s: float,
        work: Callable[[Topic], Awaitable[None]],
        end_round: Callable[[], None] = lambda: None,
    ) -> None:
        """Do `work` on every loaded topic, every so often; what goes wrong with one is that one's.

        `end_round` is called after each round, also after one that is cancelled.
        """
        while True:
            await trio.sleep(interval_s)
            try:
                for topic in tuple(self.loaded.values()):
                    if not topic.closing:
                        try:
                            await work(topic)
                        except GemingaError as error:
                            log.warning("%s: %s", topic.name, error)
            finally:
                end_round()

    async def close(self) -> None:
        """Close every topic, many at a time; nothing is loaded any more."""
        self._closing = True
        topics = iter(tuple(self.loaded.values()))

        async def close_next() -> None:
            for topic in topics:
                await self._close_quietly(topic)

        async with trio.open_nursery() as nursery:
            for _ in range(CLOSED_AT_ONCE):
                nursery.start_soon(close_next)

    async def _close_one(self, topic: Topic) -> None:
        try:
            await topic.close()
        finally:
            self._forget(topic)

    async def _close_quietly(self, topic: Topic) -> None:
        """Close a topic for nobody in particular: what goes wrong is logged, the next load looks again."""
        if not topic.closing:
            try:
                await self._close_one(topic)
            except GemingaError as error:
                log.error("%s could not be closed in order: %s", topic.name, error)

    def _topic_fenced(self, topic: Topic) -> None:
        if self._nursery is not None and not self._closing:
            self._nursery.start_soon(self._close_quietly, topic)

    async def _to_the_end(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do `work` whether or not the caller is cancelled meanwhile (its client left): a topic that is half
        closed must not be loaded again.
        """
        done = trio.Event()
        failure: list[GemingaError] = []

        async def run() -> None:
            try:
                await work()
            except GemingaError as error:
                failure.append(error)
            finally:
                done.set()

        assert self._nursery is not None
        self._nursery.start_soon(run)
        await done.wait()
        if failure:
            raise failure[0]

    def _forget(self, topic: Topic) -> None:
        """The next who asks for it loads it from disk."""
        if self.loaded.get(str(topic.name)) is topic:
            del self.loaded[str(topic.name)]

    # -- finding ---------------------------------------------------------------------------------------------

    async def get(self, name: TopicName, *, create: bool) -> Topic:
        """The topic, loaded. Raises `TopicNotFound` when it does not exist and may not be made."""
        topic = self.loaded.get(str(name))
        if topic is not None and not topic.closing:
            return topic
        self._check_served(name)
        loading = self._loading.get(str(name))
        while loading is not None and create and not loading.create:
            await loading.done.wait()
            loading = self._loading.get(str(name))
        if loading is None:
            loading = self._loading[str(name)] = _Loading(create)
            assert self._nursery is not None
            self._nursery.start_soon(self._load, name, loading)
        await loading.done.wait()
        if loading.error is not None:
            raise loading.error
        assert loading.topic is not None
        return loading.topic

    async def _load(self, name: TopicName, loading: _Loading) -> None:
        key = str(name)
        try:
            old = self.loaded.get(key)
            if old is not None:
                raise ServiceNotReady(f"topic {name} is closing; try again")
            topic = await self._open(name, loading.create)
            if self._closing:
                await topic.close()
                raise ServiceNotReady("the broker is stopping")
            if topic.closing:
                raise ServiceNotReady(f"topic {name} could not be loaded; try again")
            self.loaded[key] = loading.topic = topic
        except GemingaError as error:
            loading.error = error
        finally:
            del self._loading[key]
            loading.done.set()

    async def _open(self, name: TopicName, create: bool) -> Topic:
        rooms = self._rooms
        exists = self.exists(name)
        if not exists:
            self._check_may_create(name, create)
            if not name.is_partition:
                await rooms.policies.forget_topic(name)  # of an earlier topic, whose deletion was cut short
        ledger = await ManagedLedger.open(
            records.managed_ledger_path(name),
            rooms.bookie,
            rooms.metadata,
            rooms.ledger_ids,
            rooms.clock,
            rooms.ledger_settings,
            tail_cache=rooms.tail_cache,
            create=not exists,
        )
        assert self._nursery is not None
        topic = Topic(name, ledger, rooms, TaskGroup(self._nursery), on_fenced=self._topic_fenced)
        try:
            await topic.start()
        except GemingaError:
            await topic.close()
            raise
        return topic

    def _check_may_create(self, name: TopicName, create: bool) -> None:
        if name.partition_index >= 0:
            partitions = self.partitions(name.partitioned_name)
            if partitions:
                if name.partition_index >= partitions:
                    raise TopicNotFound(
                        f"Illegal topic partition name {name} with max allowed {partitions} partitions"
                    )
                return
        elif self.partitions(name):
            raise NotAllowed(
                f"{name} is a partitioned topic; use one of its partitions, {name}-partition-0 and so on"
            )
        if not create:
            raise TopicNotFound(f"Topic {name} does not exist")

    def _check_served(self, name: TopicName) -> None:
        if self._closing:
            raise ServiceNotReady("the broker is stopping")
        if not name.is_persistent:
            raise NotAllowed(f"{name}: only persistent topics are served")
        self._rooms.namespaces.check_exists(name.namespace)

    def exists(self, name: TopicName) -> bool:
        """Whether the topic is on disk, or will be made the moment someone asks for it."""
        return self._rooms.metadata.get(records.managed_ledger_path(name)) is not None

    def partitions(self, name: TopicName) -> int:
        """How many partitions a topic has; 0 if it is not partitioned (or is not there)."""
        path = records.partitioned_topic_path(name)
        stored = self._rooms.metadata.get(path)
        return records.decode(PartitionedTopicRecord, stored.value, path).partitions if stored else 0

    def may_be_created(self, name: TopicName) -> bool:
        """Whether a client's first use makes this topic, if it is not there yet."""
        if self._rooms.settings.auto_topic_creation or self.exists(name):
            return True
        return self.partitions(name.partitioned_name if name.partition_index >= 0 else name) > 0

    async def partitions_or_create(self, name: TopicName, *, create: bool) -> int:
        """Number of partitions; a topic that is partitioned by default is recorded now. 0: not partitioned.

        Raises `TopicNotFound` when the topic is not there and will not be made by its first use either.
        """
        self._check_served(name)
        partitions = self.partitions(name)
        if partitions or name.partition_index >= 0 or self.exists(name):
            return partitions
        settings = self._rooms.settings
        if not (create and settings.auto_topic_creation):
            raise TopicNotFound(f"Topic {name} does not exist")
        if settings.auto_topic_creation_partitions > 0:
            with contextlib.suppress(Conflict):
                await self.create_partitioned(name, settings.auto_topic_creation_partitions)
        return self.partitions(name)

    def each_name_in(self, namespace: NamespaceName) -> Iterator[str]:
        """Full names of the persistent topics of a namespace, each partition by its own name: one after the
        other, in no order, some twice.
        """
        yield from self._each_child(records.MANAGED_LEDGERS, namespace)
        for partitioned in self.partitioned_names_in(namespace):
            name = TopicName.parse(partitioned)
            for index in range(self.partitions(name)):
                yield str(name.partition(index))

    def plain_names_in(self, namespace: NamespaceName) -> list[str]:
        """Topics that have a managed ledger: those without partitions, and partitions that were used."""
        return self._children(records.MANAGED_LEDGERS, namespace)

    def partitioned_names_in(self, namespace: NamespaceName) -> list[str]:
        """Names of the partitioned topics of a namespace, without the partitions."""
        return self._children(records.PARTITIONED_TOPICS, namespace)

    def _children(self, root: str, namespace: NamespaceName) -> list[str]:
        return list(self._each_child(root, namespace))

    def _each_child(self, root: str, namespace: NamespaceName) -> Iterator[str]:
        path = records.topics_path(root, namespace, TopicDomain.PERSISTENT)
        for child in self._rooms.metadata.each_child(path):
            yield f"persistent://{namespace}/{decode_name(child)}"

    # -- changing --------------------------------------------------------------------------------------------

    async def create_partitioned(
        self, name: TopicName, partitions: int, properties: dict[str, str] | None = None
    ) -> None:
        """Record a partitioned topic; its partitions are made when they are first used. Durable on return."""
        self._check_served(name)
        if partitions <= 0:
            raise NotAllowed(f"number of partitions should be more than 0, not {partitions}")
        self._check_count(partitions)
        if self.exists(name) or self.partitions(name):
            raise Conflict("This topic already exists")
        await self._rooms.policies.forget_topic(name)  # of an earlier topic, whose deletion was cut short
        record = PartitionedTopicRecord(
            partitions=partitions, properties=properties or {}, created_ms=self._rooms.clock.now_ms()
        )
        try:
            await self._rooms.metadata.put(
                records.partitioned_topic_path(name), records.encode(record), expected_version=-1
            )
        except BadVersion:
            raise Conflict("This topic already exists") from None

    async def grow_partitioned(self, name: TopicName, partitions: int) -> None:
        """Raise the number of partitions; it never falls. New partitions get the subscriptions of the
        first.
        """
        path = records.partitioned_topic_path(name)
        stored = self._rooms.metadata.get(path)
        if stored is None:
            raise TopicNotFound(f"Partitioned topic {name} does not exist")
        record = records.decode(PartitionedTopicRecord, stored.value, path)
        if partitions <= record.partitions:
            raise NotAllowed(
                f"number of partitions must be more than the existing {record.partitions}, not {partitions}"
            )
        self._check_count(partitions)
        subscriptions = await self._subscription_names(name, record.partitions)
        grown = msgspec.structs.replace(record, partitions=partitions)
        await self._rooms.metadata.put(
            records.partitioned_topic_path(name), records.encode(grown), expected_version=stored.version
        )
        for index in range(record.partitions, partitions):
            if subscriptions:
                topic = await self.get(name.partition(index), create=True)
                for subscription in subscriptions:
                    await topic.create_subscription(subscription, initial="earliest")

    def _check_count(self, partitions: int) -> None:
        if partitions > PARTITIONS_MAX:
            raise NotAllowed(f"{partitions} partitions: a topic may have at most {PARTITIONS_MAX}")

    async def _subscription_names(self, name: TopicName, partitions: int) -> set[str]:
        names: set[str] = set()
        for index in range(partitions):
            if self.exists(name.partition(index)):
                topic = await self.get(name.partition(index), create=False)
                names |= {n for n, s in topic.subscriptions.items() if s.cursor.durable}
        return names

    async def delete_partitioned(self, name: TopicName, *, force: bool = False) -> None:
        """Delete every partition, then the record of the partitioned topic."""
        partitions = self.partitions(name)
        if not partitions:
            raise TopicNotFound(f"Partitioned topic {name} does not exist")
        present = [name.partition(i) for i in range(partitions) if self.exists(name.partition(i))]
        for partition in present:
            topic = await self.get(partition, create=False)
            if not force and topic.is_in_use:
                raise ConsumerBusy("Topic has active producers/subscriptions")
        for partition in present:
            await self.delete(partition, force=force)
        try:
            await self._rooms.metadata.delete(records.partitioned_topic_path(name))
        except KeyMissing:
            raise TopicNotFound(f"Partitioned topic {name} does not exist") from None
        await self._rooms.policies.forget_topic(name)
        await self.schemas.forget(name)

    async def delete(self, name: TopicName, *, force: bool = False) -> None:
        """Delete a topic and all that it stores. Without `force` nobody may be connected to it."""
        topic = await self.get(name, create=False)
        if not force:
            self._check_deletable(topic)
        await self._to_the_end(partial(self._delete_one, topic))

    async def _delete_one(self, topic: Topic) -> None:
        try:
            await topic.delete()
            if not topic.name.is_partition:
                await self._rooms.policies.forget_topic(topic.name)
                await self.schemas.forget(topic.name)
        finally:
            self._forget(topic)

    async def _delete_if_idle(self, topic: Topic, deletions: IdleDeletions) -> None:
        if is_to_go(topic):
            topic.publishing.close()  # from now on nobody joins, and no message is taken that would be lost
            deletions.note(str(topic.name), topic.ledger.number_of_entries)
            await self._to_the_end(partial(self._delete_one, topic))

    async def unload(self, name: TopicName) -> None:
        """Close a topic; clients come back and load it from disk."""
        topic = self.loaded.get(str(name))
        if topic is None:
            if not self.exists(name):
                raise TopicNotFound(f"Topic {name} does not exist")
            return
        if not topic.closing:
            await self._to_the_end(partial(self._close_one, topic))

    def _check_deletable(self, topic: Topic) -> None:
        connected = len(topic.producers) + sum(len(s.consumers) for s in topic.subscriptions.values())
        if connected:
            raise ConsumerBusy(f"Topic has {connected} connected producers/consumers")
