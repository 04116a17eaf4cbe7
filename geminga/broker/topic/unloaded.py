"""Topics on disk that no client has used since the start: their figures, and what loads them.

A topic is loaded on first use. Until then its records say what it holds, and the statistics of a broker must
not leave it out: after a restart nearly all topics are in that state. `UnloadedTopics` reads the records of
each once, at a pace that leaves the loop to clients, and again after each unload. What is delayed is known
to a loaded topic only, and the periodic checks see loaded topics only, so `load_wanted` loads the topics that
hold delayed messages back, and those that the checks may take messages from, one after the other.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

import trio

from geminga.broker.flow.slices import Pace
from geminga.broker.subscription.unread_delays import read_delays
from geminga.broker.topic.upkeep import takes_from
from geminga.errors import GemingaError, ServiceNotReady, TopicNotFound
from geminga.managed_ledger.unopened import UnopenedLedger, read_unopened
from geminga.names import NamespaceName, TopicName

if TYPE_CHECKING:
    from geminga.broker.policies.policies import Policies
    from geminga.broker.topic.rooms import Rooms
    from geminga.broker.topic.topic import Topic
    from geminga.broker.topic_lists.topic_names import TopicNames
    from geminga.managed_ledger.cursor.cursor_ledger import Storage

log = logging.getLogger("geminga.broker")

WORK_S: Final = 0.004
REST_S: Final = 0.001
"""Records are read for the one time, and nothing is done for the other. 10,000 topics take some seconds, and
a client waits at most for the first.
"""
LOAD_SHARE: Final = 0.2
"""Of a core: topics that no client asks for are loaded at most so fast."""
REST_S_MAX: Final = 1.0
NO_ROOM_RETRY_S: Final = 10.0
LOOK_S: Final = 0.005
UNREAD_ENTRIES_MAX: Final = 100_000
"""A longer backlog that no consumer has read is not read for a move of the clock, to learn what of it is
delayed.
"""


class UnloadedTopics:
    """Figures of the unloaded topics by name, in memory: about 300 bytes for each."""

    def __init__(
        self,
        rooms: Rooms,
        names: TopicNames,
        loaded: Mapping[str, Topic],
        storage_of: Callable[[TopicName], Storage],
    ) -> None:
        """`loaded` is the registry's own mapping."""
        self._rooms = rooms
        self._storage_of = storage_of
        self._names = names
        self._loaded = loaded
        self._found: dict[str, UnopenedLedger | None] = {}
        """None: not read yet, or its records could not be read."""
        self._due: dict[str, None] = {}
        self._unchecked: dict[str, None] = {}
        """Their figures are new to `load_wanted`, or their last load failed."""
        self._is_reading = False
        self._wake = trio.Event()
        self._is_listed = False
        self._listed = trio.Event()
        """Set when the records of all topics were read for the first time."""
        self._to_read: dict[str, None] = {}
        """Topics that hold delayed messages back: only a load, and a read of the backlog, tells how many."""
        self._has_to_read = trio.Event()
        self._to_load: dict[str, None] = {}
        """Topics that the periodic checks may take messages from."""
        self._has_room: Callable[[], bool] = lambda: True

    # -- what is known ---------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Topics on disk that are not loaded, as far as they have been listed."""
        return len(self._found)

    @property
    def unread(self) -> int:
        """Those whose records are still to be read; 1 more while topics are still to be listed."""
        return len(self._due) + self._is_reading + (not self._is_listed)

    async def unread_delays(self, pace: Pace) -> int:
        """Topics of which the broker may not know yet until when they hold messages back: unread ones, and
        those that are to be loaded for that. Looks at each topic.
        """
        count = self.unread
        for _, found in self.figures():
            await pace.row()
            count += _holds_delayed(found)
        return count

    def get(self, name: str) -> UnopenedLedger | None:
        """None: it is loaded, was not read yet, or is not there."""
        return self._found.get(name)

    def figures(self) -> Iterator[tuple[str, UnopenedLedger]]:
        """Of the topics whose records have been read. Sees no change after the call."""
        return ((name, found) for name, found in list(self._found.items()) if found is not None)

    # -- changes ---------------------------------------------------------------------------------------------

    def changed(self, name: str, *, holds_delayed: bool = False) -> None:
        """The topic was unloaded, or its records were changed while it is not loaded: read them again; if it
        holds delayed messages back, load it again.
        """
        self._found.setdefault(name, None)
        self._due[name] = None
        self._wake.set()
        if holds_delayed:
            self._to_read[name] = None
            self._has_to_read.set()

    def loaded(self, name: str) -> None:
        """The topic is loaded, and tells its figures itself."""
        self._found.pop(name, None)
        self._due.pop(name, None)
        self._unchecked.pop(name, None)

    # -- reading ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Read what there is, and what changes, until cancelled. Run it once both ports answer."""
        pace = Pace(WORK_S, REST_S)
        for namespace in await self._rooms.namespaces.all_namespaces():
            for name in self._names.each_stored_name_in(NamespaceName.parse(namespace)):
                if name not in self._loaded:
                    self.changed(name)
                await pace.turn()
        self._is_listed = True
        while True:
            while self._due:
                name = next(iter(self._due))
                # Before the read: a change in the middle of it makes the name due once more.
                del self._due[name]
                self._is_reading = True
                try:
                    await self._read(name)
                finally:
                    self._is_reading = False
                await pace.turn()
            self._listed.set()
            self._wake = trio.Event()
            await self._wake.wait()

    async def _read(self, text: str) -> None:
        storage = self._storage_of(TopicName.parse(text))
        found: UnopenedLedger | None = None
        try:
            found = await read_unopened(storage)
        except TopicNotFound:
            self.loaded(text)
            return
        except GemingaError as error:
            # Told once, and again with the error that its first client gets.
            log.warning("%s: its figures are not known: %s", text, error)
        # It may have been loaded meanwhile, and even closed again: then `changed` has made it due once more.
        if text in self._found and text not in self._due:
            self._found[text] = found
            if found is not None and found.entries:
                self._unchecked[text] = None

    # -- loading ---------------------------------------------------------------------------------------------

    async def load_wanted(
        self,
        policies: Policies,
        load: Callable[[TopicName], Awaitable[Topic]],
        has_room: Callable[[], bool],
        interval_s: float,
    ) -> None:
        """Load the topics that hold delayed messages, at once and first, and read what none of their indexes
        knows; and those that the periodic checks may take messages from, which are looked for every
        `interval_s`. Until cancelled.

        A fifth of a core is used for it, and no topic is loaded while `has_room` is False, which a surface
        tells by entries that are not read yet.
        """
        self._has_room = has_room
        await self._listed.wait()
        # A producer may have loaded a topic whose subscriptions have no consumer.
        self._to_read |= {name: None for name, topic in self._loaded.items() if topic.ledger.holds_delayed}
        look_at_s, changes, share = trio.current_time(), -1, _Share()
        while True:
            if trio.current_time() >= look_at_s:
                # What neither was read nor has another policy is not looked at again: 10,000 idle topics
                # would take time at each round.
                names = list(self._unchecked if policies.changes == changes else self._found)
                changes = policies.changes
                await self._queue(names, policies)
                look_at_s = trio.current_time() + interval_s
            if queue := self._to_read or self._to_load:
                while not has_room():  # noqa: ASYNC110 - memory becomes free without a word
                    await trio.sleep(NO_ROOM_RETRY_S)
                share.begin()
                text = next(iter(queue))
                del queue[text]
                await self._load_one(text, load, share, reads=queue is self._to_read)
                await share.rest()
            else:
                self._has_to_read = trio.Event()
                with trio.move_on_at(look_at_s):
                    await self._has_to_read.wait()

    async def _queue(self, names: list[str], policies: Policies) -> None:
        """Have those of these topics loaded that are wanted."""
        self._unchecked.clear()
        pace = Pace()
        for text in names:
            await pace.turn()
            found = self._found.get(text)
            if found is None:
                continue
            if _holds_delayed(found):
                self._to_read[text] = None
            elif found.entries and takes_from(found, policies.effective(TopicName.parse(text))):
                self._to_load[text] = None

    async def _load_one(
        self, text: str, load: Callable[[TopicName], Awaitable[Topic]], share: _Share, *, reads: bool
    ) -> None:
        try:
            topic = await load(TopicName.parse(text))
            is_read = reads
            for subscription in tuple(topic.subscriptions.values()) if reads else ():
                is_read &= await read_delays(subscription, share.rest)
            # The note stays where a consumer, a seek or an unload came: the index may lack the rest.
            if is_read and not topic.closing:
                await topic.delays.note_held()
        except GemingaError as error:
            is_there = text in self._found
            if is_there:
                self._unchecked[text] = None
            if is_there or text in self._loaded:  # else it was deleted meanwhile
                lacks = "its delayed messages are not counted" if reads else "its policies are not enforced"
                log.warning("%s: %s: %s", text, lacks, error)

    async def load_delayed_now(self, load: Callable[[TopicName], Awaitable[Topic]]) -> list[str]:
        """Load the topics that hold delayed messages, at full speed, as long as there is room, and have what
        all loaded topics hold back in their indexes; returns those that are not loaded. Waits until the
        records of all topics have been read.
        """
        while self.unread:  # noqa: ASYNC110 - once a start
            await trio.sleep(LOOK_S)
        left = []
        for text in [name for name, found in self.figures() if _holds_delayed(found)]:
            try:
                if not self._has_room():
                    raise ServiceNotReady("there is no memory for what it holds back")
                await load(TopicName.parse(text))
            except GemingaError as error:
                log.warning("%s: it is not loaded for a move of the clock: %s", text, error)
                left.append(text)
        pace = Pace()
        for topic in tuple(self._loaded.values()):
            for subscription in tuple(topic.subscriptions.values()):
                await pace.row()
                try:
                    unread = subscription.delayed.unread_entries()
                    if len(subscription.consumers) or 0 < unread <= UNREAD_ENTRIES_MAX:
                        await read_delays(subscription, trio.lowlevel.checkpoint)
                except GemingaError as error:
                    name = f"{topic.name} / {subscription.name}"
                    log.warning("%s: what it holds back is not known: %s", name, error)
        return left


def _holds_delayed(topic: UnopenedLedger) -> bool:
    return topic.has_buckets or topic.holds_delayed


class _Share:
    """Work that takes `LOAD_SHARE` of the time and no more."""

    def __init__(self) -> None:
        self._since_s = trio.current_time()

    def begin(self) -> None:
        self._since_s = trio.current_time()

    async def rest(self) -> None:
        """To be called every few milliseconds of work: a backlog may have millions of entries."""
        # By the time that has passed, in which the thread of a disk may have worked beside the loop.
        busy_s = trio.current_time() - self._since_s
        await trio.sleep(min(busy_s * (1 / LOAD_SHARE - 1), REST_S_MAX))
        self._since_s = trio.current_time()
