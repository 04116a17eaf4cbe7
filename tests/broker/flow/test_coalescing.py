"""When the loop pauses so that messages share a turn, and when it does not."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, repeat

import pytest

from geminga.broker.flow.coalescing import (
    ALONE_MAX,
    PAUSE_S,
    STREAM_ENTRIES_MIN,
    STREAM_PAUSE_S,
    Coalescing,
)

TURN_S = 1 / 1024


class HandClock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s


class Loop:
    """Its turns are about a millisecond apart."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.coalescing = Coalescing(self.clock.monotonic_s)

    def turn(self, publishers: list[str]) -> float:
        for publisher in publishers:
            self.coalescing.sent(publisher, 1, is_alone=True)
        return self.end()

    def end(self, *, is_writing: bool = False) -> float:
        self.clock.now_s += TURN_S
        return self.coalescing.pause_s(0.0001, lambda: is_writing)

    def stream(self, entries: int = STREAM_ENTRIES_MIN, *, turn_s: float = 0.0001) -> float:
        """The pause after a turn in which a stream's publisher sent so many."""
        self.coalescing.sent("stream", entries // 2, is_alone=False)
        self.coalescing.sent("stream", entries - entries // 2, is_alone=False)
        self.clock.now_s += TURN_S
        return self.coalescing.pause_s(turn_s, lambda: True)

    def turns(self, publishers: Iterator[str], *, each: int = 1, count: int = 50) -> list[float]:
        """The pauses at their ends; so many of the publishers send in each of them."""
        return [self.turn([next(publishers) for _ in range(each)]) for _ in range(count)]


def rare(count: int = 1000) -> Iterator[str]:
    return cycle(f"publisher-{number}" for number in range(count))


@pytest.mark.parametrize("each", [1, 2, 3])
def test_many_rare_publishers_are_waited_for(each: int) -> None:
    loop = Loop()
    publishers = rare()
    loop.turns(publishers, each=each)
    assert loop.turns(publishers, each=each) == [PAUSE_S] * 50


@pytest.mark.parametrize("each", [1, 3])
def test_publishers_that_come_back_within_the_window_are_not(each: int) -> None:
    loop = Loop()
    assert loop.turns(rare(10), each=each, count=200) == [0.0] * 200


def test_nor_is_one_that_waits_for_each_receipt() -> None:
    loop = Loop()
    assert loop.turns(repeat("one"), count=200) == [0.0] * 200


def test_nor_are_rare_ones_beside_one_that_waits_for_each_receipt() -> None:
    loop = Loop()
    publishers = rare()
    pauses = [
        loop.turn([next(publishers), "quick"] if turn % 4 == 0 else [next(publishers)]) for turn in range(200)
    ]
    assert pauses == [0.0] * 200


def test_nor_are_so_many_that_they_share_turns_anyway() -> None:
    loop = Loop()
    assert loop.turns(rare(), each=5, count=200) == [0.0] * 200


def test_nor_are_few() -> None:
    loop = Loop()
    publishers = rare()
    pauses = [loop.turn([next(publishers)] if turn % 3 == 0 else []) for turn in range(200)]
    assert pauses == [0.0] * 200


def test_pauses_end_soon_after_a_publisher_waits_for_each_receipt() -> None:
    loop = Loop()
    publishers = rare()
    assert loop.turns(publishers)[-1] == PAUSE_S
    # The window of the change and the next one.
    pauses = [loop.turn([next(publishers), "quick"]) for _ in range(100)]
    assert pauses[34:] == [0.0] * 66


def test_pauses_end_when_nobody_publishes() -> None:
    loop = Loop()
    assert loop.turns(rare())[-1] == PAUSE_S
    assert [loop.turn([]) for _ in range(100)][34:] == [0.0] * 66


def test_there_are_none_while_a_client_waits_for_answers() -> None:
    loop = Loop()
    publishers = rare()
    assert loop.turns(publishers)[-1] == PAUSE_S
    loop.coalescing.asked()
    pauses = []
    for turn in range(100):
        pauses.append(loop.turn([next(publishers)]))
        if turn % 10 == 0:
            loop.coalescing.asked()
    assert pauses == [0.0] * 100
    # The window of the last question, and the one in which nothing is asked.
    assert loop.turns(publishers)[34:] == [PAUSE_S] * 16


def test_a_window_that_was_open_for_long_is_not_judged() -> None:
    loop = Loop()
    for _ in range(10):
        loop.turn([f"publisher-{number}" for number in range(16)])
        # 16 messages in a minute: a pause would gain nothing.
        loop.clock.now_s += 60
        assert loop.end() == 0.0


def test_its_memory_is_bounded() -> None:
    coalescing = Coalescing(HandClock().monotonic_s)
    publishers = [object() for _ in range(1000)]
    for publisher in publishers:
        coalescing.sent(publisher, STREAM_ENTRIES_MIN, is_alone=True)
    assert len(coalescing._publishers) == len(coalescing._streams) == ALONE_MAX


def test_rare_publishers_get_their_receipts_before_a_pause() -> None:
    loop = Loop()
    assert loop.turns(rare())[-1] == PAUSE_S
    assert (loop.end(is_writing=True), loop.end(is_writing=False)) == (0.0, PAUSE_S)


def test_a_stream_is_read_in_larger_parts() -> None:
    loop = Loop()
    assert [loop.stream() for _ in range(100)] == [STREAM_PAUSE_S] * 100
    assert loop.stream(STREAM_ENTRIES_MIN - 1) == 0.0
    # This turn has let enough come by itself.
    assert loop.stream(500, turn_s=STREAM_PAUSE_S) == 0.0
    assert loop.end() == 0.0


def test_a_stream_whose_publisher_has_sent_all_it_may_is_read_at_once() -> None:
    loop = Loop()
    pauses = []
    for _ in range(200):
        # Its window, and the turn in which its receipts leave: nothing came meanwhile.
        pauses += [loop.stream(128), loop.end()]
    # Three pauses, then none for 64 ms.
    assert pauses[:6] == [STREAM_PAUSE_S, 0.0] * 3
    assert pauses[6:70] == [0.0] * 64
    assert sum(pauses) <= 3 * 7 * STREAM_PAUSE_S


def test_a_stream_may_hesitate() -> None:
    loop = Loop()
    for _ in range(20):
        assert [loop.stream(), loop.end(), loop.stream()] == [STREAM_PAUSE_S, 0.0, STREAM_PAUSE_S]


def test_a_stream_that_the_broker_catches_up_with_is_one_still() -> None:
    loop = Loop()
    for _ in range(100):
        loop.coalescing.sent("stream", STREAM_ENTRIES_MIN, is_alone=True)
        assert loop.stream() == STREAM_PAUSE_S


@pytest.mark.parametrize("window", [1, 2, 10])
def test_no_stream_pauses_while_another_publisher_waits_for_its_receipts(window: int) -> None:
    loop = Loop()
    pauses = []
    for turn in range(100):
        if turn % 5 == 0:
            loop.coalescing.sent("waiting", window, is_alone=True)
        pauses.append(loop.stream())
    # The first window began in the middle.
    assert pauses[17:] == [0.0] * 83
    # The rest of the window, and the one after it.
    assert [loop.stream() for _ in range(50)][34:] == [STREAM_PAUSE_S] * 16


def test_no_stream_pauses_while_a_client_waits_for_answers() -> None:
    loop = Loop()
    assert loop.stream() == STREAM_PAUSE_S
    loop.coalescing.asked()
    assert [loop.stream() for _ in range(20)] == [0.0] * 20
