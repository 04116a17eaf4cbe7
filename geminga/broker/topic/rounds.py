"""Periodic work on all loaded topics: one task for each kind of work."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from geminga.broker.flow.slices import Pace
from geminga.broker.topic.inactivity import (
    IdleDeletions,
    expire_subscriptions,
    expires_subscriptions,
    is_to_go,
)
from geminga.broker.topic.upkeep import (
    enforce_quotas,
    expire,
    has_ids,
    has_quota,
    has_ttl,
    trim,
    upkeep_deduplication,
)
from geminga.errors import GemingaError
from geminga.managed_ledger.chain.state import QUEUEING

if TYPE_CHECKING:
    from geminga.broker.topic.rooms import Rooms
    from geminga.broker.topic.topic import Topic
    from geminga.clock import Clock

log = logging.getLogger("geminga.broker")

ROUNDS_MAX: Final = 8
ROLLED_SECONDS_MAX: Final = 10.0
LOOK_S: Final = 0.002


class Checks:
    """One kind of work on every loaded topic, every `interval_s` seconds."""

    # One task for each kind of work and none for each topic: a task that sleeps takes 6 KiB.
    def __init__(
        self,
        clock: Clock,
        loaded: Mapping[str, Topic],
        interval_s: float,
        work: Callable[[Topic], Awaitable[None]],
        concerns: Callable[[Topic], bool] = lambda _: True,
        end_round: Callable[[], None] = lambda: None,
    ) -> None:
        """`concerns`: whether there may be any such work on a topic, which is asked before each. `end_round`
        is called after each round, even after a cancelled one.
        """
        self._clock = clock
        self._loaded = loaded
        self._interval_s = interval_s
        self._work = work
        self._concerns = concerns
        self._end_round = end_round
        self._running = trio.Lock()
        self._put_off()

    def _put_off(self) -> None:
        self.due_ms = self._clock.now_ms() + int(self._interval_s * 1000)
        """When the next round is due in message time, which only jumps of the clock go by."""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await trio.sleep(self._interval_s)
            await self.run_once()

    async def run_once(self) -> bool:
        """Whether anything changed. An error of one topic is logged, and the round goes on with the next."""
        # Without a turn of the loop where it is free, as a jump comes here before nearly each of its stops.
        try:
            self._running.acquire_nowait()
        except trio.WouldBlock:
            await self._running.acquire()
        self._put_off()
        try:
            return await self._round()
        finally:
            self._end_round()
            self._running.release()

    async def _round(self) -> bool:
        has_changed, pace = False, Pace()
        # A copy: topics are loaded and closed while a round waits for a disk.
        for topic in tuple(self._loaded.values()):
            await pace.row()
            if not topic.closing and self._concerns(topic):
                before = _traces(topic) if self._clock.is_virtual else None
                try:
                    await self._work(topic)
                except GemingaError as error:
                    log.warning("%s: %s", topic.name, error)
                has_changed |= before is not None and before != _traces(topic)
        return has_changed


def _traces(topic: Topic) -> tuple[object, ...]:
    """What a check may change of a topic."""
    subscriptions = tuple(s.cursor.mark_delete for s in topic.subscriptions.values())
    return topic.closing, topic.ledger.state, topic.ledger.number_of_ledgers, subscriptions


class Rounds:
    """Trimming, expiry, quotas, rates and write deadlines of the loaded topics."""

    def __init__(
        self, rooms: Rooms, loaded: Mapping[str, Topic], delete: Callable[[Topic], Awaitable[None]]
    ) -> None:
        """`loaded` is the registry's own mapping; `delete` deletes an unused topic from it and from disk."""
        self._rooms = rooms
        self._loaded = loaded
        self._delete = delete
        settings, idle = rooms.settings, IdleDeletions()
        self._every = partial(Checks, rooms.clock, loaded)
        self.expiry = self._every(settings.expiry_interval_s, expire, has_ttl)
        self.unused_topics = self._every(
            settings.inactive_topics_interval_s,
            partial(self._delete_if_idle, deletions=idle),
            end_round=idle.tell,
        )
        self.unused_subscriptions = self._every(
            settings.subscription_expiry_interval_s, expire_subscriptions, expires_subscriptions
        )
        self._checks = tuple(self._all_checks())

    def start(self, nursery: trio.Nursery) -> None:
        """Start all rounds in `nursery`. They end when it is cancelled."""
        nursery.start_soon(self._measure_rates)
        if write_timeout_s := self._rooms.settings.write_timeout_s:
            nursery.start_soon(self._watch_writes, write_timeout_s)
        for checks in self._checks:
            nursery.start_soon(checks.run)

    def _all_checks(self) -> Iterator[Checks]:
        """Each before those that go by what it has done."""
        settings = self._rooms.settings
        yield self.expiry
        if settings.checks_quotas:
            enforce = partial(enforce_quotas, record=self._rooms.record)
            yield self._every(settings.quota_interval_s, enforce, has_quota)
        yield self.unused_subscriptions
        yield self.unused_topics
        yield self._every(settings.trim_interval_s, trim)
        yield self._every(settings.dedup_upkeep_s, upkeep_deduplication, has_ids)

    # -- under a virtual clock -------------------------------------------------------------------------------

    def are_due(self, at_ms: int) -> bool:
        """Whether a check's interval has passed by then, in message time, since it last ran."""
        return any(checks.due_ms <= at_ms for checks in self._checks)

    async def run_due(self, at_ms: int) -> bool:
        """Run each such check once, however often its interval has passed; whether anything changed."""
        has_changed = False
        for checks in self._checks:
            if checks.due_ms <= at_ms:
                has_changed |= await checks.run_once()
        return has_changed

    async def run_until_unchanged(self) -> None:
        """Run all checks until nothing follows any more from what they do, at most `ROUNDS_MAX` times."""
        for _ in range(ROUNDS_MAX):
            # A ledger that is about to be left can go when the next one is there.
            with trio.move_on_after(ROLLED_SECONDS_MAX):
                while any(t.ledger.state in QUEUEING for t in self._loaded.values()):  # noqa: ASYNC110
                    await trio.sleep(LOOK_S)
            if not any([await checks.run_once() for checks in self._checks]):
                return

    async def _measure_rates(self) -> None:
        # By the measured time, not the configured one: a busy loop wakes this task late, and rates would be
        # too high. From beginning to beginning: each topic has its turn about as long after that.
        began_s = trio.current_time()
        while True:
            await trio.sleep(self._rooms.settings.rates_interval_s)
            rooms, before_s, began_s = self._rooms, began_s, trio.current_time()
            rooms.figures.measure(began_s - before_s, rooms.bookie, rooms.tail_cache)
            pace = Pace()
            for topic in tuple(self._loaded.values()):
                await topic.measure(began_s - before_s, pace)
                await pace.row()

    async def _watch_writes(self, timeout_s: float) -> None:
        """Fail producers whose entries are not durable in time."""
        # Without entries on their way there is nothing to look at: an idle broker does not walk over its
        # topics.
        memory, clock = self._rooms.publish_memory, self._rooms.clock
        while True:
            await trio.sleep(min(1.0, timeout_s / 4))
            if memory.pending_bytes:
                accepted_before_s = clock.monotonic_s() - timeout_s
                pace = Pace()
                for topic in tuple(self._loaded.values()):
                    topic.publishing.fail_overdue(accepted_before_s)
                    await pace.row()

    async def _delete_if_idle(self, topic: Topic, deletions: IdleDeletions) -> None:
        if is_to_go(topic):
            # Closed before the deletion's first await: a producer that joined in between would get receipts
            # for messages that the deletion removes.
            topic.publishing.close()
            deletions.note(str(topic.name), topic.ledger.number_of_entries)
            await self._delete(topic)
