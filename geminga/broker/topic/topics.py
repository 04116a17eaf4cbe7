"""All loaded topics of the broker: loads them on first use, closes and deletes them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import trio

from geminga.broker.schemas.registry import SchemaRegistry
from geminga.broker.topic.catalog import TopicCatalog
from geminga.broker.topic.compaction_cursor import Settling
from geminga.broker.topic.rounds import Rounds
from geminga.broker.topic.topic import Topic
from geminga.broker.topic.unloaded import UnloadedTopics
from geminga.broker.topic_lists.pattern import TopicsPatterns
from geminga.broker.topic_lists.watches import TopicLists
from geminga.errors import (
    ConsumerBusy,
    GemingaError,
    ServiceNotReady,
    TopicNotFound,
)
from geminga.managed_ledger.chain.tasks import TaskGroup
from geminga.managed_ledger.cursor.cursor_ledger import Storage
from geminga.managed_ledger.cursor_saver import CursorSaver
from geminga.managed_ledger.managed_ledger import ManagedLedger
from geminga.managed_ledger.unloaded import UnloadedTopic, each_subscription_name, has_cursor
from geminga.metadata import records
from geminga.names import TopicName

if TYPE_CHECKING:
    from geminga.broker.topic.rooms import Rooms

log = logging.getLogger("geminga.broker")


# Enough to share syncs. All at once made more tasks than the topics themselves were worth, and collections of
# garbage walked again and again over what was about to go with the process.
CLOSED_AT_ONCE = 500
"""The number of topics that are closed at a time when the broker stops."""
CLOSE_WAIT_S = 25.0
"""How long a request waits for the end of a topic that is closing or being deleted: less than the 30 s after
which clients give a request up.
"""


class _Loading:
    """One load that is under way, for which any number of callers wait."""

    # The load runs in the nursery of the topics and not in that of its first caller: a client that
    # disconnects must not cancel the load for all others that wait.
    __slots__ = ("create", "done", "error", "topic")

    def __init__(self, create: bool) -> None:
        self.create = create
        self.done = trio.Event()
        self.topic: Topic | None = None
        self.error: GemingaError | None = None


class Topics:
    """The registry. The first request loads a topic; it stays loaded until it is closed or deleted."""

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms
        self._nursery: trio.Nursery | None = None
        self._cursor_saver: CursorSaver | None = None
        self._loading: dict[str, _Loading] = {}
        self._held: dict[str, trio.Event] = {}
        """Topics whose records are being changed while they are not loaded; set at the end of that."""
        self._ends: dict[str, trio.Event] = {}
        """Of topics that are closing and waited for; set when they are not in `loaded` any more."""
        self.loaded: dict[str, Topic] = {}
        self._closing = False
        self.catalog = TopicCatalog(rooms)
        self.unloaded_topics = UnloadedTopics(rooms, self.catalog.names, self.loaded, self._storage)
        self.schemas = SchemaRegistry(rooms.metadata, rooms.clock)
        self.lists = TopicLists(self.catalog.names, rooms.metadata, TopicsPatterns(rooms.client_metadata))
        self.rounds = Rounds(rooms, self.loaded, self._delete_to_the_end)
        self._settling = Settling()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Own the tasks of all topics. A bug in one of them ends the broker."""
        # Loudly, with a traceback: a topic that lost a task would go on without trimming, or without
        # delivering.
        async with trio.open_nursery() as nursery:
            rooms, self._nursery = self._rooms, nursery
            interval_ms = rooms.ledger_settings.cursor_persist_interval_ms
            self._cursor_saver = CursorSaver(rooms.bookie, nursery, interval_ms)
            nursery.start_soon(self._rooms.tail_cache.run_forever)
            await nursery.start(self.lists.run)
            self.rounds.start(nursery)
            nursery.start_soon(self._settling.run)
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._closing = True
                for topic in self.loaded.values():
                    topic.tasks.cancel()

    async def close(self) -> None:
        """Close all topics, many at a time. No topic is loaded from now on."""
        self._closing = True
        topics = iter(tuple(self.loaded.values()))

        async def close_next() -> None:
            for topic in topics:
                await self._close_quietly(topic)

        async with trio.open_nursery() as nursery:
            for _ in range(CLOSED_AT_ONCE):
                nursery.start_soon(close_next)

    async def persist_cursors(self) -> None:
        """Write all that was acknowledged so far; durable on return. Raises StorageError."""
        for topic in tuple(self.loaded.values()):
            await topic.ledger.persist_cursors()

    async def _close_one(self, topic: Topic) -> None:
        try:
            await topic.close()
        finally:
            self._forget(topic)

    async def _close_quietly(self, topic: Topic) -> None:
        """Close a topic without a request to answer. Errors are logged; the next load starts over."""
        # A topic that is closing already is another request's, which waits for the result.
        if not topic.closing:
            try:
                await self._close_one(topic)
            except GemingaError as error:
                log.error("%s could not be closed in order: %s", topic.name, error)

    def _topic_fenced(self, topic: Topic) -> None:
        self._rooms.record("topic-fenced", topic=str(topic.name))
        # A fenced ledger never recovers by itself. Its clients are disconnected, and their next lookup loads
        # the topic from what is durable.
        if self._nursery is not None and not self._closing:
            self._nursery.start_soon(self._close_quietly, topic)

    async def _to_the_end(self, work: Callable[[], Awaitable[None]]) -> None:
        """Finish `work`, even if the caller is cancelled meanwhile because its client has left."""
        # Half closed, a topic would be in `loaded` for ever: neither usable nor loaded again.
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
        """Remove the topic, so that the next request loads it from disk."""
        # By identity: a close that ends late must not remove the topic that was loaded after it.
        if self.loaded.get(str(topic.name)) is topic:
            del self.loaded[str(topic.name)]
            if (ended := self._ends.pop(str(topic.name), None)) is not None:
                ended.set()
            if not self._closing and self.catalog.exists(topic.name):
                self.unloaded_topics.changed(str(topic.name), holds_delayed=topic.ledger.holds_delayed)

    async def _end_of(self, key: str) -> None:
        """Wait until a topic that is closing has left `loaded`. Raises ServiceNotReady if that takes long."""
        # Two managed ledgers of one topic would each write records that the other does not know.
        with trio.move_on_after(CLOSE_WAIT_S):
            await self._ends.setdefault(key, trio.Event()).wait()
            return
        raise ServiceNotReady(f"topic {key} is closing; try again")

    async def load_wanted(self, has_room: Callable[[], bool]) -> None:
        """See `UnloadedTopics.load_wanted`."""
        settings = self._rooms.settings
        interval_s = min(settings.trim_interval_s, settings.expiry_interval_s, settings.quota_interval_s)
        load = partial(self.get, create=False, recorded=True)
        await self.unloaded_topics.load_wanted(self._rooms.policies, load, has_room, interval_s)

    async def load_delayed_now(self) -> list[str]:
        """See `UnloadedTopics.load_delayed_now`."""
        return await self.unloaded_topics.load_delayed_now(partial(self.get, create=False, recorded=True))

    @property
    def loading_count(self) -> int:
        """Loads that are under way."""
        return len(self._loading)

    # -- finding ---------------------------------------------------------------------------------------------

    async def get(
        self,
        name: TopicName,
        *,
        create: bool,
        recorded: bool = False,
        properties: Mapping[str, str] | None = None,
    ) -> Topic:
        """The topic, loaded again if it is closing. Raises `TopicNotFound` if it does not exist and may not
        be created. A partition of a partitioned topic may, unless it has to be `recorded`. A topic that this
        call creates gets the properties with its first write.
        """
        key = str(name)
        while True:
            # At each turn: it may have been deleted during the wait.
            if recorded and not self.catalog.exists(name):
                raise TopicNotFound(f"Topic {name} does not exist")
            # Without an await for a loaded topic, which is nearly always the case.
            topic = self.loaded.get(key)
            if topic is not None and not topic.closing:
                return topic
            self._check_served(name)
            loading, held = self._loading.get(key), self._held.get(key)
            if topic is not None:
                await self._end_of(key)
            elif held is not None:
                await held.wait()
            # A load that may not create the topic answers TopicNotFound to all that wait for it. A caller
            # that may create it waits for the end of that one and starts its own.
            elif loading is not None and create and not loading.create:
                await loading.done.wait()
            else:
                break
        if loading is None:
            loading = self._loading[key] = _Loading(create)
            assert self._nursery is not None
            self._nursery.start_soon(self._load, name, loading, properties)
        await loading.done.wait()
        if loading.error is not None:
            raise loading.error
        assert loading.topic is not None
        return loading.topic

    @contextmanager
    def unloaded(self, name: TopicName) -> Iterator[UnloadedTopic | None]:
        """The topic's records, which are the caller's until the end of the block: requests that want to load
        it wait. None if it is loaded, or about to be. The block must be short.
        """
        key = str(name)
        is_taken = key in self.loaded or key in self._loading or key in self._held
        # The delivery log has the notes of what is loaded.
        if self._closing or is_taken or self._rooms.delivery_log is not None:
            yield None
            return
        done = self._held[key] = trio.Event()
        try:
            yield UnloadedTopic.read(self._storage(name))
        finally:
            del self._held[key]
            self.unloaded_topics.changed(key)
            done.set()

    def each_recorded_subscription(self, name: TopicName) -> Iterator[str]:
        """The topic's durable subscriptions as they are on disk, loaded or not, one after the other."""
        return each_subscription_name(self._storage(name))

    def has_recorded_subscription(self, name: TopicName, subscription: str) -> bool:
        """As a look through `each_recorded_subscription`, without the others. No name of a system cursor."""
        return has_cursor(self._storage(name), subscription)

    def _storage(self, name: TopicName) -> Storage:
        rooms, path = self._rooms, records.managed_ledger_path(name)
        return Storage(
            str(name),
            path,
            rooms.bookie,
            rooms.metadata,
            rooms.ledger_ids,
            rooms.clock,
            rooms.ledger_settings,
        )

    async def _load(self, name: TopicName, loading: _Loading, properties: Mapping[str, str] | None) -> None:
        key = str(name)
        began_s = trio.current_time()
        try:
            topic = await self._open(name, loading.create, properties)
            self._rooms.passed("topic-recovered")
            # `close` has taken its list of topics before this one was in it.
            if self._closing:
                await topic.close()
                raise ServiceNotReady("the broker is stopping")
            if topic.closing:
                raise ServiceNotReady(f"topic {name} could not be loaded; try again")
            self.loaded[key] = loading.topic = topic
            self.unloaded_topics.loaded(key)
            self._rooms.figures.topic_loads.add((trio.current_time() - began_s) * 1000)
        except GemingaError as error:
            loading.error = error
            self._rooms.figures.topic_load_failed()
            # It may have been created before the error came.
            if not self._closing and key not in self.loaded and self.catalog.exists(name):
                self.unloaded_topics.changed(key)
        finally:
            del self._loading[key]
            loading.done.set()

    async def _open(self, name: TopicName, create: bool, properties: Mapping[str, str] | None) -> Topic:
        rooms = self._rooms
        exists = self.catalog.exists(name)
        if not exists:
            self.catalog.check_may_create(name, create)
            if not name.is_partition:
                # Of an earlier topic of this name: its deletion removes the policies last, and a crash may
                # have come before that.
                await rooms.policies.forget_topic(name)
        ledger = await ManagedLedger.open(
            records.managed_ledger_path(name),
            rooms.bookie,
            rooms.metadata,
            rooms.ledger_ids,
            rooms.clock,
            rooms.ledger_settings,
            tail_cache=rooms.tail_cache,
            create=not exists,
            properties=properties,
        )
        assert self._nursery is not None
        assert self._cursor_saver is not None
        topic = Topic(
            name,
            ledger,
            rooms,
            TaskGroup(self._nursery),
            self._cursor_saver,
            on_fenced=self._topic_fenced,
            on_unsettled=self._settling.note,
        )
        # Closed again, or its ledger and its tasks would go on without a topic in `loaded`.
        try:
            await topic.start()
        except GemingaError:
            await topic.close()
            raise
        return topic

    def _check_served(self, name: TopicName) -> None:
        if self._closing:
            raise ServiceNotReady("the broker is stopping")
        self.catalog.check_served(name)

    # -- changing --------------------------------------------------------------------------------------------

    async def delete(self, name: TopicName, *, force: bool = False) -> None:
        """Delete a topic with all its data. Without `force` no client may be connected to it."""
        is_deleted = False

        async def delete_unloaded() -> None:
            nonlocal is_deleted
            with self.unloaded(name) as found:
                if found is not None and found.exists:
                    await found.delete()
                    await self._forget_name(name)
                    is_deleted = True

        await self._to_the_end(delete_unloaded)
        if is_deleted:
            return
        topic = await self.get(name, create=False)
        if not force:
            self._check_deletable(topic)
        await self._delete_to_the_end(topic)

    async def _delete_one(self, topic: Topic) -> None:
        # The topic first: a crash in between leaves policies without a topic, which the next topic of this
        # name drops. The other way round a crash would leave a topic that has lost its policies.
        try:
            await topic.delete()
            await self._forget_name(topic.name)
        finally:
            self._forget(topic)

    async def _forget_name(self, name: TopicName) -> None:
        """Delete what is kept by the topic's name; that of a partition is its partitioned topic's."""
        if not name.is_partition:
            await self._rooms.policies.forget_topic(name)
            await self.schemas.forget(name)

    async def _delete_to_the_end(self, topic: Topic) -> None:
        await self._to_the_end(partial(self._delete_one, topic))

    async def unload(self, name: TopicName) -> None:
        """Close a topic, or wait for its end. Its clients look it up again, which loads it from disk."""
        topic = self.loaded.get(str(name))
        if topic is None:
            if not self.catalog.exists(name):
                raise TopicNotFound(f"Topic {name} does not exist")
            return
        if topic.closing:
            await self._end_of(str(name))
        else:
            await self._to_the_end(partial(self._close_one, topic))

    def _check_deletable(self, topic: Topic) -> None:
        connected = len(topic.producers) + sum(len(s.consumers) for s in topic.subscriptions.values())
        if connected:
            raise ConsumerBusy(f"Topic has {connected} connected producers/consumers")
