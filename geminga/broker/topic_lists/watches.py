"""Watches of topic names: one list for each namespace and pattern, kept up to date while it is watched.

Pulsar notifies each watch of each change with a hash over all its names. Here all watches of a pattern share
a list, and all lists of a namespace one reading of its names. Changes that arrive while one is processed are
sent together, so a thousand new topics cause a few pushes with their hashes, not a thousand.
"""

from __future__ import annotations

import contextlib
import logging
from bisect import bisect_left, insort
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import trio

from geminga.broker.flow.slices import NAMES_MAX, Pace, in_slices, selected, sorted_names
from geminga.broker.topic_lists.pattern import subject
from geminga.errors import GemingaError, NotAllowed
from geminga.metadata import records
from geminga.metadata.watch import ChangeKind
from geminga.names import PARTITION_SUFFIX, NamespaceName, TopicDomain, TopicName, decode_name
from geminga.wire.topic_list import TopicsHash, topics_hash

if TYPE_CHECKING:
    from geminga.broker.topic_lists.pattern import TopicsPattern, TopicsPatterns
    from geminga.broker.topic_lists.topic_names import TopicNames
    from geminga.metadata.store import MetadataStore
    from geminga.metadata.watch import Change

log = logging.getLogger("geminga.broker")

NAMES_KEPT_MAX = 200_000
"""The limit of names in all lists, about 25 MB. Beyond it a watch is refused, and its client polls now and
then, as it does with brokers that know no watches. What the lists leave of it is for the names that
namespaces keep for further lists.
"""
CHANGES_MAX = 10_000
"""The limit of changes that are kept for a list while it is gathered. Beyond it the list is gathered again.
"""
LOOKED_MAX = 25
"""Names between two turns of the loop: about a millisecond."""

Listed = dict[str, dict[str, bool]]
"""Names that may have come or gone, by their `subject`, and whether each is there now."""


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

    def __init__(self, text: str, namespace: NamespaceName, pattern: TopicsPattern) -> None:
        self.text = text
        self.namespace = namespace
        self._pattern = pattern
        self.watches: set[Watch] = set()
        self.names: Sequence[str] = ()
        """Sorted names. Complete once `ready` is set; another object after each change."""
        self.digest = topics_hash(())
        """Of `names`."""
        self.ready = trio.Event()
        self.end = ""
        """Why it is not kept up to date any more; empty while it is."""

    async def gather(self, names: Sequence[str]) -> None:
        """Take what matches of all names of the namespace."""
        found = await selected(names, self._pattern.select)
        self.digest, self.names = await hashed(found, Pace()), found

    def stop(self, reason: str) -> None:
        """Also for watches that wait for it."""
        self.end = reason
        self.ready.set()

    async def follow(self, listed: Listed, pace: Pace, changed_now: Callable[[], None]) -> None:
        """Take what differs, and tell the watches. The list changes in one step, together with its digest: a
        watch that begins meanwhile is answered with one that its next push goes on from. `changed_now` is
        called in this step.
        """
        mine: dict[str, bool] = {}
        for text, names in listed.items():
            if self._pattern.matches_subject(text):
                mine |= names
            await pace.row()
        added, deleted = await _differences(self.names, mine, pace)
        if not added and not deleted:
            return
        changed = await _changed(self.names, added, deleted, pace)
        self.digest, self.names = await hashed(changed, pace), changed
        changed_now()
        # A watch that is answered from here on has the change in its answer.
        watches = [watch for watch in self.watches if watch.is_answered]
        digest = self.digest
        for watch in watches:
            if watch in self.watches:
                watch.changed(added, deleted, digest)
                await pace.turn()


class WatchedNamespace:
    """The lists of one namespace. `run` follows the metadata store for all of them."""

    def __init__(
        self,
        namespace: NamespaceName,
        topics: TopicNames,
        metadata: MetadataStore,
        listing: trio.Lock,
        fits: Callable[[], bool],
    ) -> None:
        """`listing` is held while names are gathered, so that this is done for one list at a time. `fits`
        returns whether all lists of the broker keep few enough names; it may `forget` those for further lists
        of any namespace.
        """
        self.namespace = namespace
        self.lists: dict[str, PatternList] = {}
        """By pattern; those that are `ready` follow each change."""
        self.scope = trio.CancelScope()
        self._topics = topics
        self._metadata = metadata
        self._listing = listing
        self._fits = fits
        self._roots = tuple(
            records.topics_path(root, namespace, TopicDomain.PERSISTENT)
            for root in (records.MANAGED_LEDGERS, records.PARTITIONED_TOPICS)
        )
        # Kept for further lists while there is room: 1,000 patterns that each read 10,000 names for
        # themselves took 165 s of CPU.
        self._names: list[str] | None = None
        # Whether these names and those of the lists may differ.
        self._is_ahead = False
        self._new: dict[str, PatternList] = {}
        self._asked = trio.Event()
        # Held while changes are followed, and while a gathered list joins those that follow them; not while
        # it is gathered, as clients that are told of changes would wait for the lists of others.
        self._turn = trio.Lock()
        self._following: Sequence[Change] = ()
        # Changes that a list may lack which is being gathered; None if it has to be gathered again.
        self._since: list[Change] | None = None

    @property
    def names_listed(self) -> int:
        return sum(len(each.names) for each in self.lists.values())

    @property
    def names_spare(self) -> int:
        """Those that are kept for further lists."""
        return len(self._names or ())

    def forget(self) -> None:
        """Keep no names for further lists; the next one reads them again."""
        self._names = None

    def add(self, text: str, pattern: TopicsPattern) -> PatternList:
        """A list that `run` gathers; it is `ready` then, or has an `end`."""
        found = self.lists[text] = self._new[text] = PatternList(text, self.namespace, pattern)
        self._asked.set()
        return found

    def remove(self, watched: PatternList) -> None:
        """May be repeated."""
        if self.lists.get(watched.text) is watched:
            del self.lists[watched.text]
            self._new.pop(watched.text, None)

    def stop(self, reason: str) -> None:
        """End all lists."""
        for watched in list(self.lists.values()):
            self.remove(watched)
            watched.stop(reason)

    async def run(self) -> None:
        """Until the metadata store stops. Raises a group of `GemingaError`."""
        # The watch is open before the names are read, and each change is judged by what is durable when it is
        # looked at: a topic that comes or goes in between is neither missed nor told twice.
        with self._metadata.watch(*self._roots) as changes:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._gather_new)
                async for change in changes:
                    async with self._turn:
                        self._following = [change, *_waiting(changes)]
                        if self._since is not None:
                            self._since += self._following
                            if len(self._since) > CHANGES_MAX:
                                self._since = None
                        await self._follow(self._following)
                        self._following = ()
                    # Changes that come meanwhile go out together at the next turn.
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()

    async def _gather_new(self) -> None:
        while True:
            while self._new:
                await self._gather_next()
            self._asked = trio.Event()
            await self._asked.wait()

    async def _gather_next(self) -> None:
        async with self._listing:
            text = next(iter(self._new), None)
            if text is None:  # its client has left
                return
            found, kept = self._new[text], self._names
            # With those that are followed just now, as the names that are kept may lack them.
            self._since = [*self._following]
            if kept is None:
                names = await sorted_names(self._topics.each_name_in(self.namespace))
            else:
                names = kept
            await found.gather(names)
            self._make_room_for(found)
        async with self._turn:
            since, self._since = self._since, None
            if since is None:
                # Too much has changed, or names were missed and read again after those of this list.
                return
            listed, pace = await in_slices(self._listed(since, lambda: iter((names,)))), Pace()
            await found.follow(listed, pace, lambda: self._make_room_for(found))
            # Changes that wait to be followed may be in the kept names and not yet in the lists, or in this
            # list and not yet in the kept names.
            if kept is None:
                self._is_ahead = any(each.ready.is_set() for each in self.lists.values())
                self._names = await _followed(names, listed, pace)
            elif listed:
                self._is_ahead = True
            if self._new.get(text) is found:
                del self._new[text]
                found.ready.set()
            self._make_room()

    def _make_room_for(self, found: PatternList) -> None:
        """In the step in which it gets names: until then other namespaces would give up theirs."""
        if self._new.get(found.text) is found:
            self._make_room(found)

    def _make_room(self, latest: PatternList | None = None) -> None:
        """Give up `latest`, then the longest list."""
        while self.lists and not self._fits():
            found = latest or max(self.lists.values(), key=lambda each: len(each.names))
            latest = None
            reason = f"the broker keeps at most {NAMES_KEPT_MAX} names for watchers; use a narrower pattern"
            log.warning(
                "Topics of %s that match %r are not watched any more, and consumers find new topics at their "
                "own intervals: %s",
                self.namespace,
                found.text,
                reason,
            )
            self.remove(found)
            found.stop(reason)

    async def _follow(self, changes: list[Change]) -> None:
        pace = Pace()
        if any(change.kind is ChangeKind.RESYNC for change in changes):
            async with self._listing:
                names = await sorted_names(self._topics.each_name_in(self.namespace))
            listed = await in_slices(self._listed_again(names))
            self._names, self._is_ahead, self._since = names, False, None
        else:
            listed = await in_slices(self._listed(changes, self._each_ready_list))
            if self._names is not None:
                self._names = await _followed(self._names, listed, pace)
            # Whatever they differed in was among these changes, and all of them follow it in this turn.
            self._is_ahead = False
        # By their texts: if this is cancelled with a thousand lists in hand, their patterns end in one step.
        for text in list(self.lists):
            watched = self.lists.get(text)
            if watched is not None and watched.ready.is_set():
                await watched.follow(listed, pace, self._make_room)
        self._make_room()

    def _listed_again(self, names: list[str]) -> Generator[None, None, Listed]:
        """What the lists may lack or have beyond `names`, which were read just now. With names to compare
        with it is what differs, and else all of them.
        """
        before = None if self._is_ahead else self._names
        gone: set[str] = set()
        for each in self._each_ready_list() if before is None else (before,):
            for part in _parts(each):
                gone.update(part)
                yield
        found: Listed = {}
        for part in _parts(names):
            for name in part:
                if before is None or name not in gone:
                    found.setdefault(subject(name), {})[name] = True
            gone.difference_update(part)
            yield
        for part in _parts(list(gone)):
            for name in part:
                found.setdefault(subject(name), {})[name] = False
            yield
        return found

    def _listed(
        self, changes: Sequence[Change], lists: Callable[[], Iterator[Sequence[str]]]
    ) -> Generator[None, None, Listed]:
        """What the changes name, and whether it is there now. `lists` are those that it is compared with."""
        affected = yield from self._affected(changes, lists)
        found: Listed = {}
        for looked, name in enumerate(affected, 1):
            is_listed = self._topics.is_listed(TopicName.parse(name))
            found.setdefault(subject(name), {})[name] = is_listed
            if looked % LOOKED_MAX == 0:
                yield
        return found

    def _affected(
        self, changes: Sequence[Change], lists: Callable[[], Iterator[Sequence[str]]]
    ) -> Generator[None, None, set[str]]:
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
                name = self._full_name(path.removeprefix(partitioned + "/"))
                yield from self._add_partitions(name, lists(), found)
            if looked % LOOKED_MAX == 0:
                yield
        return found

    def _full_name(self, child: str) -> str:
        return f"{TopicDomain.PERSISTENT.value}://{self.namespace}/{decode_name(child)}"

    def _add_partitions(
        self, text: str, lists: Iterator[Sequence[str]], found: set[str]
    ) -> Generator[None, None, None]:
        """Those that are listed, and those that the topic has now."""
        name = TopicName.parse(text)
        for index in range(self._topics.partitions(name)):
            found.add(str(name.partition(index)))
            if index % LOOKED_MAX == LOOKED_MAX - 1:
                yield
        prefix = f"{text}{PARTITION_SUFFIX}"
        for names in lists:
            for at in range(bisect_left(names, prefix), len(names)):
                if not names[at].startswith(prefix):
                    break
                found.add(names[at])
                if at % NAMES_MAX == 0:
                    yield
            yield

    def _each_ready_list(self) -> Iterator[Sequence[str]]:
        """The names that are kept for further lists; if they lack some of the lists that are ready, also
        those.
        """
        if self._names is not None:
            yield self._names
            if not self._is_ahead:
                return
        for watched in list(self.lists.values()):
            if watched.ready.is_set():
                yield watched.names


def _waiting(changes: trio.MemoryReceiveChannel[Change]) -> Iterator[Change]:
    with contextlib.suppress(trio.WouldBlock, trio.EndOfChannel):
        while True:
            yield changes.receive_nowait()


def _parts(names: Sequence[str]) -> Iterator[Sequence[str]]:
    return (names[start : start + NAMES_MAX] for start in range(0, len(names), NAMES_MAX))


async def hashed(names: Sequence[str], pace: Pace) -> str:
    """`topics_hash` of sorted names, in slices."""
    digest = TopicsHash()
    for part in _parts(names):
        digest.add(part)
        await pace.turn()
    return digest.text()


async def _differences(
    names: Sequence[str], listed: dict[str, bool], pace: Pace
) -> tuple[list[str], list[str]]:
    """Of the sorted `names`: what they lack, and what they have beyond; both sorted."""
    added: list[str] = []
    deleted: list[str] = []
    for name, is_listed in listed.items():
        at = bisect_left(names, name)
        if (at < len(names) and names[at] == name) is not is_listed:
            (added if is_listed else deleted).append(name)
        await pace.row()
    return await sorted_names(added), await sorted_names(deleted)


async def _followed(names: Sequence[str], listed: Listed, pace: Pace) -> list[str]:
    """The sorted names of the namespace as they are now."""
    everything = {name: is_listed for some in listed.values() for name, is_listed in some.items()}
    added, deleted = await _differences(names, everything, pace)
    return await _changed(names, added, deleted, pace)


async def _changed(
    names: Sequence[str], added: Sequence[str], deleted: Sequence[str], pace: Pace
) -> list[str]:
    """The sorted names with those differences, which are sorted too."""
    if len(added) + len(deleted) > LOOKED_MAX:
        # One pass, where each name alone would move those behind it. In slices: 100,000 names took 11 ms.
        gone, merged, at = frozenset(deleted), list[str](), 0
        for part in _parts(names):
            end = bisect_left(added, part[-1], lo=at)
            merged += sorted([*(name for name in part if name not in gone), *added[at:end]])
            at = end
            await pace.turn()
        return [*merged, *added[at:]]
    found = list(names)
    for name in added:
        insort(found, name)
    for name in deleted:
        del found[bisect_left(found, name)]
    return found


class TopicLists:
    """All watched lists of the broker. `run` owns their tasks."""

    def __init__(self, names: TopicNames, metadata: MetadataStore, patterns: TopicsPatterns) -> None:
        self.names = names
        self.patterns = patterns
        self._metadata = metadata
        self._namespaces: dict[NamespaceName, WatchedNamespace] = {}
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

        Raises `NotAllowed` if all lists together would keep too many names, if a record of the namespace is
        damaged, and while the broker stops. If cancelled, nothing is watched.
        """
        watched = self._namespaces.get(namespace)
        if watched is None:
            watched = WatchedNamespace(namespace, self.names, self._metadata, self.listing, self._fits)
            self._namespaces[namespace] = watched
            assert self._nursery is not None
            self._nursery.start_soon(self._keep, watched)
        found = watched.lists.get(text) or watched.add(text, pattern)
        found.watches.add(watch)
        try:
            await found.ready.wait()
            if found.end:
                raise NotAllowed(f"Unable to create topic list watcher: {found.end}")
        except BaseException:
            self.unwatch(found, watch)
            raise
        return found

    def unwatch(self, found: PatternList, watch: Watch) -> None:
        """May be repeated. The end of the last watch frees the list."""
        found.watches.discard(watch)
        watched = self._namespaces.get(found.namespace)
        if watched is None:
            return
        if not found.watches:
            watched.remove(found)
        if not watched.lists:
            # Gone from the table at once: a watch that begins now must not join what is ending.
            del self._namespaces[found.namespace]
            watched.scope.cancel()

    async def _keep(self, watched: WatchedNamespace) -> None:
        reason = "the broker is stopping"
        try:
            with watched.scope:
                await watched.run()
        # A group, as the two tasks share a nursery.
        except* GemingaError as group:
            reason = str(group.exceptions[0])
            log.error("Topics of %s are not watched any more: %s", watched.namespace, reason)
        finally:
            if self._namespaces.get(watched.namespace) is watched:
                del self._namespaces[watched.namespace]
            watched.stop(reason)

    def _fits(self) -> bool:
        """Whether the lists do. What is kept for further ones goes first, in any namespace: no list ends for
        it.
        """
        free = NAMES_KEPT_MAX - sum(each.names_listed for each in self._namespaces.values())
        excess = sum(each.names_spare for each in self._namespaces.values()) - max(free, 0)
        while excess > 0:
            largest = max(self._namespaces.values(), key=lambda each: each.names_spare)
            excess -= largest.names_spare
            largest.forget()
        return free >= 0
