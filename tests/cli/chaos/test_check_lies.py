"""What a broker once could do without being found out, and what an honest one was accused of."""

from __future__ import annotations

import pytest

from geminga.cli.chaos.checking.history import Jump, Left
from geminga.cli.chaos.checking.scenario import Expect, Scenario, Step
from tests.cli.chaos.story import BEGAN_MS, Story

# -- the clock -----------------------------------------------------------------------------------------------


def moved(*, from_ms: int = 20_000, by_ms: int = 60_000) -> Story:
    story = Story()
    story.deliver_all()
    story.history.jumps.append(
        Jump(
            asked_ms=BEGAN_MS + 20_000,
            length_ms=60_000,
            done_ms=BEGAN_MS + 20_009,
            from_ms=BEGAN_MS + from_ms,
            to_ms=BEGAN_MS + from_ms + by_ms,
        )
    )
    return story


def test_a_move_that_goes_too_far_is_found() -> None:
    """By its own word nothing that it makes due is early."""
    moved().finds()
    [text] = moved(by_ms=120_000).finds(clock=1).counts["clock"].texts
    assert text == "a move of 60,000 ms was 60,000 ms too far"


def test_a_clock_that_runs_ahead_between_moves_is_found() -> None:
    moved(from_ms=21_000).finds()
    [text] = moved(from_ms=22_000).finds(clock=1).counts["clock"].texts
    assert text == "it was 1,991 ms ahead at 20.00 s"


def test_a_move_that_a_crash_cut_short_may_have_been_made_up_before_it_is_asked_for_again() -> None:
    story = moved(from_ms=80_000)
    story.crash(19_950)
    story.finds()
    story = moved(from_ms=82_000)
    story.crash(19_950)
    story.finds(clock=1)


# -- the broker's counts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["backlog", "pending", "delayed"])
def test_a_count_below_zero_is_found(name: str) -> None:
    story = Story()
    story.deliver_all()
    counts = {"backlog": 0, "pending": 0, "delayed": 0} | {name: -1}
    story.history.left.append(Left(subscription=0, partition=-1, **counts))
    [text] = story.finds(left_behind=1).counts["left_behind"].texts
    assert text == f"topic 0, s: {name} -1"


def test_what_was_not_sent_explains_nothing_that_is_left() -> None:
    story = Story()
    story.deliver_all()
    story.history.sent[0][9].first_ms = story.history.sent[0][9].receipt_ms = 0
    story.got.pop()
    story.finds()
    story.history.left.append(Left(subscription=0, partition=-1, backlog=1, pending=0, delayed=0))
    story.finds(left_behind=1)


# -- keys ----------------------------------------------------------------------------------------------------


def test_a_key_may_be_at_a_consumer_of_each_partition() -> None:
    story = Story("Key_Shared", messages=2, keys=1)
    story.deliver(0, 1000, partition=0, acked_ms=1100).acknowledge(BEGAN_MS + 1099)
    story.deliver(1, 1050, partition=1, session=1, acked_ms=1100)
    story.finds()
    story.got[1].partition = 0
    story.finds(two_at_a_key=1)


# -- nothing at all ------------------------------------------------------------------------------------------


def test_a_run_in_which_nothing_was_confirmed_or_received_shows_nothing() -> None:
    story = Story(messages=1)
    story.history.sent[0][0].receipt_ms = 0
    assert story.check().not_shown == ["no message was confirmed"]
    assert story.check().verdict(Expect()) == "not shown"
    story = Story(messages=1)
    story.history.subscriptions.clear()
    assert story.check().verdict(Expect()) == "not shown"


def test_an_answer_may_take_as_long_as_a_scenario_holds_the_broker_up() -> None:
    assert Scenario(name="s").holds_up_ms == 0
    rule = {"place": "process", "kind": "pause", "latencyMs": 9_000, "jitterMs": 500}
    steps = [Step(do="pause", length=7_000), Step(do="fault", rule=rule), Step(do="advance", length=90_000)]
    assert Scenario(name="s", steps=steps).holds_up_ms == 9_500
