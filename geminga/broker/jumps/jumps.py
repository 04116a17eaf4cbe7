"""One jump of the virtual clock after the other, from due time to due time."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeVar

import msgspec
import trio

from geminga.broker.jumps.next_events import lacks_room, name_of, next_event, subscriptions_of
from geminga.clock import LAST_MS, VirtualClock
from geminga.errors import Conflict, StorageError
from geminga.events.recording import Record, unrecorded
from geminga.units import time_text

if TYPE_CHECKING:
    from geminga.broker.subscription.subscription import Subscription
    from geminga.broker.topic.rounds import Rounds
    from geminga.broker.topic.topic import Topic

log = logging.getLogger("geminga.broker")

T = TypeVar("T")
Wait = Literal["dispatched", "acknowledged"]

EXACT_STOPS_MAX: Final = 256
"""Stops of one jump that are each at a due time of their own. Beyond, the rest of the jump is done in steps
of a hundredth of it, since a stop takes half a millisecond: a year with a million due times would take many
minutes. Within a step a subscription's messages go in the order of the topic, as overdue ones do.
"""
COARSE_STOPS: Final = 100
SETTLE_SECONDS_MAX: Final = 10.0
"""How long a stop waits for tasks that do not come to rest: a read from a disk that hangs, say."""
JOIN_SECONDS_MAX: Final = 0.2
JOINED_LATELY_MS: Final = 1000
LOOK_S: Final = 0.002


class Jump(msgspec.Struct, frozen=True, kw_only=True):
    """What a jump did."""

    from_ms: int
    to_ms: int
    stops: int
    """Moments at which the clock stood still and tasks were woken."""
    is_exact: bool
    """Whether each due time had a stop of its own; False if there were more than `EXACT_STOPS_MAX`."""
    waiting: list[str]
    """Subscriptions with messages that may be due and that no consumer has room for, and topics with delayed
    messages that could not be loaded.
    """
    unacknowledged: list[str]
    """Subscriptions whose consumers did not acknowledge in time at one stop or more, where that was waited
    for.
    """
    unfinished: list[str]
    """Tasks that did not come to rest in time at the end."""
    event: str = ""
    """What `to_next` moved to."""


class Saves(NamedTuple):
    """What makes the state of the clock durable (`geminga/metadata/virtual_clock_state.py`)."""

    begin: Callable[[int], Awaitable[None]]
    """A jump to this time is under way."""
    end: Callable[[], Awaitable[int]]
    """The clock stands where it stands; returns how far that is ahead of the machine's."""


class _Move:
    """One jump that is under way."""

    def __init__(self, from_ms: int, to_ms: int, wait: Wait, wait_s: float) -> None:
        self.from_ms = from_ms
        self.to_ms = to_ms
        self.wait: Wait = wait
        self.wait_s = wait_s
        self.stops = 0
        self.late: set[str] = set()
        """Subscriptions that were waited for in vain, and still have not caught up."""
        self.unacknowledged: dict[str, None] = {}

    def next_stop_ms(self, now_ms: int, next_ms: int | None) -> int:
        """The first alarm's time, or a later one if there have been many stops."""
        stop_ms = self.to_ms if next_ms is None else min(max(next_ms, now_ms + 1), self.to_ms)
        if self.stops < EXACT_STOPS_MAX:
            return stop_ms
        step_ms = max(1, (self.to_ms - self.from_ms) // COARSE_STOPS)
        return max(stop_ms, min(self.to_ms, now_ms + step_ms))


class Jumps:
    """The clock's only mover. Jumps that are asked for at the same time happen one after the other."""

    def __init__(
        self,
        clock: VirtualClock,
        loaded: Mapping[str, Topic],
        rounds: Rounds,
        saves: Saves,
        load_delayed: Callable[[], Awaitable[list[str]]],
        record: Record = unrecorded,
    ) -> None:
        """`load_delayed` brings all that is held back into indexes (`UnloadedTopics.load_delayed_now`), and
        returns the topics that it could not load.
        """
        self._clock = clock
        self._loaded = loaded
        self._rounds = rounds
        self._saves = saves
        self._load_delayed = load_delayed
        self._record = record
        self._moving = trio.Lock()

    async def by(self, length_ms: int, wait: Wait = "dispatched", wait_s: float = 30.0) -> Jump:
        """As `to`, counted from the moment at which the jump begins."""
        async with self._moving:
            from_ms = self._clock.now_ms()
            return await self._jump(from_ms, from_ms + length_ms, wait, wait_s)

    async def to(self, at_ms: int, wait: Wait = "dispatched", wait_s: float = 30.0) -> Jump:
        """Move the clock to `at_ms`, past everything that falls due before, in due order.

        That the jump is under way, and where to, is durable before anything happens: after a crash the clock
        goes on from `at_ms`. Where the clock stands is durable on return. With "acknowledged" each stop waits
        up to `wait_s` seconds until consumers have acknowledged what they were given. Raises `Conflict` for a
        time in the past or beyond `LAST_MS`, and StorageError. Cancelling ends the jump at the stop where it
        is: the clock goes on from there, also after a restart, and an event says so.
        """
        async with self._moving:
            return await self._jump(self._clock.now_ms(), at_ms, wait, wait_s)

    async def to_next(self, wait: Wait = "dispatched", wait_s: float = 30.0) -> Jump:
        """To the next moment at which something happens by itself (`next_events.py`), which the answer names.
        `Conflict`: nothing is going to. Raises StorageError if an entry cannot be read for its TTL.
        """
        async with self._moving:
            await self._prepare()
            await self._quiet()
            event = await next_event(self._loaded, self._rounds)
            if event is None:
                due = [name_of(s) for s in subscriptions_of(self._loaded) if lacks_room(s)]
                if due:
                    others = f" and {len(due) - 1} more" if due[1:] else ""
                    raise Conflict(
                        "nothing else is waiting for a time: due messages wait for a consumer with room: "
                        f"{due[0]}{others}. Connect one; 'advance' moves the clock all the same"
                    )
                raise Conflict(
                    "nothing is waiting for a time on topics that are loaded: no delayed message, no TTL, no "
                    "unused subscription or topic. Publish with a delay, or connect a consumer, which loads "
                    "its topic; 'advance' moves the clock all the same"
                )
            from_ms = self._clock.now_ms()
            jump = await self._jump(from_ms, max(event.at_ms, from_ms), wait, wait_s)
            return msgspec.structs.replace(jump, event=event.text)

    async def _jump(self, from_ms: int, to_ms: int, wait: Wait, wait_s: float) -> Jump:
        """`from_ms` is now: the caller has counted from it, and the clock may have gone on since."""
        clock = self._clock
        if to_ms > LAST_MS:
            raise Conflict(
                f"the clock cannot go to {time_text(to_ms)}: its last moment is {time_text(LAST_MS)}"
            )
        if to_ms < from_ms:
            raise Conflict(
                f"the clock shows {time_text(from_ms)} and never goes back, to {time_text(to_ms)}. Start a "
                "broker on a new data directory for an earlier time"
            )
        not_loaded = await self._prepare()
        move, is_over = _Move(from_ms, to_ms, wait, wait_s), False
        has_begun = False
        with clock.held():
            try:
                with trio.CancelScope(shield=True):
                    await self._saves.begin(to_ms)
                has_begun = True
                await self._go(move)
                is_over = True
            finally:
                # Also when the caller has gone, or the broker stops: or the next start would go to the end.
                if has_begun:
                    with trio.CancelScope(shield=True):
                        await self._let_go(move, is_over=is_over)
        return Jump(
            from_ms=from_ms,
            to_ms=to_ms,
            stops=move.stops,
            is_exact=move.stops <= EXACT_STOPS_MAX,
            waiting=[*not_loaded, *(name_of(s) for s in subscriptions_of(self._loaded) if _waits(s))],
            unacknowledged=list(move.unacknowledged),
            unfinished=clock.working(),
        )

    async def _let_go(self, move: _Move, *, is_over: bool) -> None:
        """The clock ticks on once it is durable where it stands: a start would go back to the target else.
        The event is not told before that either, or a kill after it went on at the end of a move that had
        ended early. Raises StorageError, and lets the clock stand still.
        """
        try:
            ahead_ms = await self._saves.end()
        except StorageError as error:
            self._tell(move, is_over=is_over)
            self._clock.stand()
            raise StorageError(
                f"the clock stands still at {time_text(self._clock.now_ms())}, since that cannot be saved: "
                f"{error}. Move it once more, also by 0 ms, when it can be"
            ) from None
        self._tell(move, is_over=is_over)
        self._clock.let_go(ahead_ms)

    async def _go(self, move: _Move) -> None:
        clock, rounds = self._clock, self._rounds
        has_changed = False
        await self._settle(move)
        while (now_ms := clock.now_ms()) < move.to_ms:
            stop_ms = move.next_stop_ms(now_ms, clock.next_alarm_ms())
            # Up to the stop and not to it: what expires before a message is due goes first. What a check
            # changes may change the next stop as well.
            if rounds.are_due(stop_ms - 1):
                has_woken = clock.move_to(stop_ms - 1)
                move.stops += has_woken
                changes = await _to_its_end(partial(rounds.run_due, stop_ms - 1))
                has_changed |= changes
                if not (has_woken or changes or clock.is_working):
                    # As mostly. To settle before each stop as well cost a third of a move.
                    continue
            else:
                clock.move_to(stop_ms)
                move.stops += 1
            await self._settle(move)
        if has_changed:
            await _to_its_end(rounds.run_until_unchanged)
            await self._settle(move)

    def _tell(self, move: _Move, *, is_over: bool) -> None:
        text, at_ms = "", move.to_ms
        if not is_over:
            at_ms = self._clock.now_ms()
            target = time_text(move.to_ms)
            text = f"ended early, on its way to {target}: its caller has gone, or the broker stops"
            log.warning(
                "a move of the clock from %s to %s %s", time_text(move.from_ms), time_text(at_ms), text
            )
        counts = {"from_ms": move.from_ms, "to_ms": at_ms, "stops": move.stops}
        self._record("clock-moved", text=text, counts=counts)

    async def _prepare(self) -> list[str]:
        """Know what is due when, and of which consumers have room, before the clock moves. Returns the topics
        of which that is not known.
        """
        not_loaded = await self._load_delayed()
        with trio.move_on_after(SETTLE_SECONDS_MAX):
            # An index that was found at a start says only when it is read what is due.
            while any(s.delayed.unknown is not None for s in subscriptions_of(self._loaded)):  # noqa: ASYNC110
                await trio.sleep(LOOK_S)
        # A client's `subscribe` returns before its first permits are sent, so a test that goes on at once
        # would jump past messages without a consumer with room for them.
        with trio.move_on_after(JOIN_SECONDS_MAX):
            since_ms = self._clock.now_ms() - JOINED_LATELY_MS
            # By looking, as for acknowledgements.
            while any(_has_just_joined(s, since_ms) for s in subscriptions_of(self._loaded)):  # noqa: ASYNC110
                await trio.sleep(LOOK_S)
        return not_loaded

    async def _settle(self, move: _Move) -> None:
        """Wait until what the last move has woken is done."""
        await self._quiet()
        if move.wait == "acknowledged":
            await self._acknowledgements(move)

    async def _quiet(self) -> None:
        await self._clock.quiet(SETTLE_SECONDS_MAX)

    async def _acknowledgements(self, move: _Move) -> None:
        # One that was waited for in vain is not waited for at each of the later stops as well.
        move.late &= {name_of(s) for s in self._unacknowledging()}
        with trio.move_on_after(move.wait_s) as patience:
            # By looking: an event for each acknowledgement would cost brokers that never jump.
            while any(name_of(s) not in move.late for s in self._unacknowledging()):  # noqa: ASYNC110
                await trio.sleep(LOOK_S)
            await self._clock.quiet()
        if patience.cancelled_caught:
            move.late |= {name_of(s) for s in self._unacknowledging()}
            move.unacknowledged |= dict.fromkeys(sorted(move.late))

    def _unacknowledging(self) -> Iterator[Subscription]:
        return (
            s for s in subscriptions_of(self._loaded) if any(consumer.unacked for consumer in s.consumers)
        )


async def _to_its_end(work: Callable[[], Awaitable[T]]) -> T:
    """Half a deletion is nothing to leave behind when the caller goes."""
    with trio.CancelScope(shield=True):
        done = await work()
    return done


def _waits(subscription: Subscription) -> bool:
    consumers, delayed = tuple(subscription.consumers), subscription.delayed
    if delayed.has_due():
        return True
    if subscription.consumers.ignores_delays or not delayed.policy.active:
        return False
    if not consumers:
        return delayed.unread_entries() > 0
    if any(consumer.capacity() > 0 for consumer in consumers):
        return False
    # Nothing of it may have been read yet, as for a queue of size 0: then the index knows nothing of it.
    return subscription.backlog() > len(delayed) + sum(len(consumer.pending) for consumer in consumers)


def _has_just_joined(subscription: Subscription, since_ms: int) -> bool:
    return any(not c.first_flow_ms and c.connected_since_ms >= since_ms for c in subscription.consumers)
