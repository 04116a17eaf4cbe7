"""Watches of topic names: one list for each namespace and pattern, kept up to date while it is watched.

Pulsar notifies each watch of each change with a hash over all its names. Here all watches of a pattern share
a list. Changes that arrive while one is processed are sent together, so a thousand new topics cause a few
pushes with their hashes, not a thousand.
"""

from __future__ import annotations

import contextlib
import logging
from bisect import bisect_left, insort
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Protocol

import trio

from geminga.broker.flow.slices import Pace, in_slices, matching, sorted_names
from geminga.errors import GemingaError, NotAllowed
from geminga.metadata import records
from geminga.metadata.watch import ChangeKind
from geminga.names import NamespaceName, TopicDomain, TopicName, decode_name
from geminga.wire.topic_list import topics_hash

if TYPE_CHECKING:
    from geminga.broker.topic_lists.pattern import TopicsPattern, TopicsPatterns
    from geminga.broker.topic_lists.topic_names import TopicNames
    from geminga.metadata.store import MetadataStore
    from geminga.metadata.watch import Change

log = logging.getLogger("geminga.broker")

NAMES_KEPT_MAX = 200_000
"""The limit of names in all lists, about 25 MB. Beyond it a watch is refused, and its client polls now and
then, as it does with brokers that know no watches.
"""


LOOKED_MAX = 25
"""Names between two turns of the loop: about a millisecond."""


class Watch(Protocol):
    """One client's watch."""

    @property
    def is_answered(self) -> bool:
        """Whether its client has the list, and is to be told of changes."""
        ...

    def changed(self, added: list[str], deleted: list[str], digest: str) -> None:
        """`added` and `deleted` are sorted; `digest` is that of the whole list now. Must not wait."""


class PatternList:
    """The names of one namespace that match one pattern, and the watches of them."""

    def __init__(
        self,
        text: str,
        namespace: NamespaceName,
        pattern: TopicsPattern,
        topics: TopicNames,
        metadata: MetadataStore,
    ) -> None:
        self.key = str(namespace), text
        self._namespace = namespace
        self._pattern = pattern
        self._topics = topics
        self._metadata = metadata
        self._roots = tuple(
            records.topics_path(root, namespace, TopicDomain.PERSISTENT)
            for root in (records.MANAGED_LEDGERS, records.PARTITIONED_TOPICS)
        )
        self.watches: set[Watch] = set()
        self.names: list[str] = []
        """Sorted names. Complete once `ready` is set."""
        self.ready = trio.Event()
        self.scope = trio.CancelScope()

    async def run(self, listing: trio.Lock, fits: Callable[[], bool]) -> bool:
        """Gather the names, then follow the metadata store until it stops. `listing` is held meanwhile, so
        that lists of large namespaces are gathered one at a time. Returns False if `fits` reports too many
        names; the list is then no longer kept up to date.
        """
        # The watch is open before the names are read, and each change is judged by what is durable when it is
        # looked at: a topic that comes or goes in between is neither missed nor told twice.
        with self._metadata.watch(*self._roots) as changes:
            self.names = await self._gathered(listing)
            if not fits():
                return False
            self.ready.set()
            async for change in changes:
                await self._follow([change, *_waiting(changes)], listing)
                if not fits():
                    return False
                # Changes that come meanwhile go out together at the next turn.
                await trio.lowlevel.checkpoint()
        return True

    async def _follow(self, changes: list[Change], listing: trio.Lock) -> None:
        if any(change.kind is ChangeKind.RESYNC for change in changes):
            before, self.names = self.names, await self._gathered(listing)
            await self._tell(set(self.names) - set(before), set(before) - set(self.names))
        else:
            added, deleted = await in_slices(self._differences(changes))
            self._apply(added, deleted)
            await self._tell(added, deleted)

    async def _gathered(self, listing: trio.Lock) -> list[str]:
        async with listing:
            names = await sorted_names(self._topics.each_name_in(self._namespace))
            return await matching(names, self._pattern.matches)

    def _differences(self, changes: list[Change]) -> Generator[None, None, tuple[set[str], set[str]]]:
        """Names that came and names that went. The list stays as it is, so that a watch which begins
        meanwhile is answered with one that its next push goes on from.
        """
        affected = yield from self._affected(changes)
        added, deleted = set(), set()
        for looked, text in enumerate(affected, 1):
            at = bisect_left(self.names, text)
            had = at < len(self.names) and self.names[at] == text
            has = self._pattern.matches(text) and self._topics.is_listed(TopicName.parse(text))
            if has and not had:
                added.add(text)
            elif had and not has:
                deleted.add(text)
            if looked % LOOKED_MAX == 0:
                yield
        return added, deleted

    def _affected(self, changes: list[Change]) -> Generator[None, None, set[str]]:
        """Names that may have come or gone."""
        found: set[str] = set()
        for looked, (path, kind, _) in enumerate(changes, 1):
            ledgers, partitioned = self._roots
            if path.startswith(ledgers + "/"):
                child = path.removeprefix(ledgers + "/")
                # Below a topic's node are its cursors; a change of the node itself is a ledger that rolled.
                if "/" not in child and kind is not ChangeKind.MODIFIED:
                    found.add(self._full_name(child))
            elif path.startswith(partitioned + "/"):
                yield from self._add_partitions(self._full_name(path.removeprefix(partitioned + "/")), found)
            if looked % LOOKED_MAX == 0:
                yield
        return found

    def _full_name(self, child: str) -> str:
        return f"{TopicDomain.PERSISTENT.value}://{self._namespace}/{decode_name(child)}"

    def _add_partitions(self, text: str, found: set[str]) -> Generator[None, None, None]:
        """Those that are listed, and those that the topic has now."""
        if not self._pattern.matches(text):
            return
        name = TopicName.parse(text)
        for index in range(self._topics.partitions(name)):
            found.add(str(name.partition(index)))
            if index % LOOKED_MAX == LOOKED_MAX - 1:
                yield
        prefix = f"{text}-partition-"
        for at in range(bisect_left(self.names, prefix), len(self.names)):
            if not self.names[at].startswith(prefix):
                break
            found.add(self.names[at])

    def _apply(self, added: set[str], deleted: set[str]) -> None:
        if len(added) + len(deleted) > LOOKED_MAX:
            # One pass, where each name alone would move those behind it.
            self.names = sorted([*(name for name in self.names if name not in deleted), *added])
            return
        for name in added:
            insort(self.names, name)
        for name in deleted:
            del self.names[bisect_left(self.names, name)]

    async def _tell(self, added: set[str], deleted: set[str]) -> None:
        if not added and not deleted:
            return
        # A watch that is answered from here on has the change in its answer.
        watches = [watch for watch in self.watches if watch.is_answered]
        digest, came, went = topics_hash(self.names), sorted(added), sorted(deleted)
        pace = Pace()
        for watch in watches:
            if watch in self.watches:
                watch.changed(came, went, digest)
                await pace.turn()


def _waiting(changes: trio.MemoryReceiveChannel[Change]) -> Iterator[Change]:
    with contextlib.suppress(trio.WouldBlock, trio.EndOfChannel):
        while True:
            yield changes.receive_nowait()


class TopicLists:
    """All watched lists of the broker. `run` owns their tasks."""

    def __init__(self, names: TopicNames, metadata: MetadataStore, patterns: TopicsPatterns) -> None:
        self.names = names
        self.patterns = patterns
        self._metadata = metadata
        self._lists: dict[tuple[str, str], PatternList] = {}
        self._nursery: trio.Nursery | None = None
        self.listing = trio.Lock()
        """Held while a list of names is gathered, so that only one gathering takes slices of the loop, and
        while a pattern is compiled: all other tasks run before the next one is.
        """

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the lists that are watched, until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    async def watch(
        self, namespace: NamespaceName, text: str, pattern: TopicsPattern, watch: Watch
    ) -> PatternList:
        """The complete list of a pattern. `watch` is notified of its changes from now on, until `unwatch`.

        Raises `NotAllowed` if all lists together would keep too many names. If cancelled, nothing is
        watched.
        """
        key = str(namespace), text
        found = self._lists.get(key)
        if found is None:
            found = self._lists[key] = PatternList(text, namespace, pattern, self.names, self._metadata)
            assert self._nursery is not None
            self._nursery.start_soon(self._keep, found)
        found.watches.add(watch)
        try:
            await found.ready.wait()
            if self._lists.get(key) is not found:
                raise NotAllowed(
                    f"Unable to create topic list watcher: the broker keeps at most {NAMES_KEPT_MAX} names"
                    " for watchers; use a narrower pattern"
                )
        except BaseException:
            self.unwatch(found, watch)
            raise
        return found

    def unwatch(self, watched: PatternList, watch: Watch) -> None:
        """May be repeated. The end of the last watch frees the list."""
        watched.watches.discard(watch)
        if not watched.watches:
            # Gone from the table at once: a watch that begins now must not join a list that is ending.
            self._forget(watched)
            watched.scope.cancel()

    def _forget(self, watched: PatternList) -> None:
        if self._lists.get(watched.key) is watched:
            del self._lists[watched.key]

    async def _keep(self, kept: PatternList) -> None:
        try:
            with kept.scope:
                if not await kept.run(self.listing, self._fits):
                    log.warning(
                        "Topics of %s that match %r are not watched any more: the broker keeps at most %d"
                        " names for watches; consumers find new topics at their own intervals",
                        *kept.key,
                        NAMES_KEPT_MAX,
                    )
        except GemingaError as error:
            log.error("Topics of %s that match %r are not watched any more: %s", *kept.key, error)
        finally:
            self._forget(kept)
            kept.ready.set()

    def _fits(self) -> bool:
        return sum(len(each.names) for each in self._lists.values()) <= NAMES_KEPT_MAX
