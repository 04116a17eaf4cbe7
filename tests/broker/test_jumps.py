"""What a move of the virtual clock answers while real time goes on, and what it waits for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from geminga.broker.jumps.jumps import Jumps, Saves
from geminga.clock import VirtualClock
from geminga.errors import StorageError
from geminga.events.recording import Record, unrecorded


class NoRounds:
    def are_due(self, at_ms: int) -> bool:
        return False


def jumps_of(
    clock: VirtualClock,
    loaded: Mapping[str, Any],
    begun: Callable[[], None] = lambda: None,
    record: Record = unrecorded,
) -> Jumps:
    async def begin(at_ms: int) -> None:
        begun()

    async def end() -> int:
        return clock.offset_ms

    async def load() -> list[str]:
        return ["t2"]

    return Jumps(clock, loaded, NoRounds(), Saves(begin, end), load, record)  # type: ignore[arg-type]


async def test_a_move_is_as_long_as_it_was_asked_to_be() -> None:
    """Each look at the machine's clock is a millisecond later: the answer once began after the move."""
    wall_ms = count(1_800_000_000_000)
    clock = VirtualClock(wall_ms=lambda: next(wall_ms))
    jumps = jumps_of(clock, {})
    before_ms = clock.now_ms()
    moved = await jumps.by(360_001)
    assert moved.to_ms - moved.from_ms == 360_001
    again = await jumps.by(5)
    assert before_ms < moved.from_ms < moved.to_ms <= again.from_ms
    assert clock.now_ms() >= again.to_ms


class FoundAtAStart:
    """What holds a subscription's messages back; the third look finds its buckets read."""

    def __init__(self) -> None:
        self.looks = 0

    @property
    def unknown(self) -> object | None:
        self.looks += 1
        return object() if self.looks < 3 else None

    def unread_entries(self) -> int:
        return 0

    def has_due(self) -> bool:
        return True


async def test_a_move_waits_for_an_index_that_was_found_at_a_start() -> None:
    delayed = FoundAtAStart()
    topic = SimpleNamespace(name="t", subscriptions={})
    topic.subscriptions["s"] = SimpleNamespace(topic=topic, name="s", delayed=delayed, consumers=())
    began_after: list[int] = []
    jumps = jumps_of(VirtualClock(), {"t": topic}, lambda: began_after.append(delayed.looks))
    moved = await jumps.by(360_001)
    assert began_after == [3]
    assert moved.waiting == ["t2", "t / s"], "the topic that could not be loaded, too"


async def test_a_move_whose_target_cannot_be_saved_has_moved_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse() -> None:
        raise StorageError("full")

    told: list[str] = []
    clock = VirtualClock(wall_ms=lambda: 1_800_000_000_000)
    jumps = jumps_of(clock, {}, refuse, lambda kind, **about: told.append(kind))
    with pytest.raises(StorageError):
        await jumps.by(360_001)
    assert (clock.now_ms(), told, caplog.text) == (1_800_000_000_000, [], "")
    with clock.held():
        pass  # it had been let go


async def test_a_clock_whose_place_cannot_be_saved_stands_still() -> None:
    """It would go back to the target at a start after a kill, from where it had ticked on to."""
    wall_ms = 1_800_000_000_000
    is_full = True

    async def begin(at_ms: int) -> None:
        pass

    async def end() -> int:
        if is_full:
            raise StorageError("full")
        return clock.offset_ms

    async def load() -> list[str]:
        return []

    clock = VirtualClock(wall_ms=lambda: wall_ms)
    jumps = Jumps(clock, {}, NoRounds(), Saves(begin, end), load)  # type: ignore[arg-type]
    for length_ms in (5000, 0):
        with pytest.raises(StorageError, match="the clock stands still at 2027-.* full. Move it once more"):
            await jumps.by(length_ms)
        wall_ms += 60_000
        assert clock.stands
        assert clock.now_ms() == 1_800_000_005_000
    is_full = False
    await jumps.by(0)
    assert not clock.stands
    assert clock.now_ms() == 1_800_000_005_000
    wall_ms += 7
    assert clock.now_ms() == 1_800_000_005_007


class JustJoined:
    """A consumer whose first permits come after two looks."""

    connected_since_ms = 1_800_000_000_000

    def __init__(self) -> None:
        self.looks = 0

    @property
    def first_flow_ms(self) -> int:
        self.looks += 1
        return 0 if self.looks < 3 else 1

    def capacity(self) -> int:
        return 1


async def test_a_move_waits_for_a_consumer_that_has_just_joined() -> None:
    consumer, delayed = JustJoined(), SimpleNamespace(unknown=None, has_due=lambda: True)
    topic = SimpleNamespace(name="t", subscriptions={})
    topic.subscriptions["s"] = SimpleNamespace(topic=topic, name="s", delayed=delayed, consumers=(consumer,))
    began_after: list[int] = []
    clock = VirtualClock(wall_ms=lambda: consumer.connected_since_ms)
    await jumps_of(clock, {"t": topic}, lambda: began_after.append(consumer.looks)).by(360_001)
    assert began_after == [3]
