"""What a broker once could do without being found out, and what an honest one was accused of."""

from __future__ import annotations

import pytest

from geminga.cli.chaos.checking.history import Jump, Left, Seek
from geminga.cli.chaos.checking.scenario import Duration, Expect, Scenario, Step
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


# -- again ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("session", [2, 3])
def test_what_may_come_again_after_a_seek_or_a_crash_comes_once(session: int) -> None:
    for is_seek in (True, False):
        story = Story(messages=1)
        story.deliver(0, 1800)
        story.crash(2000)
        if is_seek:
            story.history.doings.clear()
            story.history.seeks.append(Seek(asked_ms=BEGAN_MS + 2000, done_ms=BEGAN_MS + 2100))
        story.deliver(0, 3000, session=2, acked_ms=3010)
        assert story.finds().again_after_crash == 1
        story.deliver(0, 3001, session=session, acked_ms=3011)
        whom = "the same consumer" if session == 2 else "another consumer"
        [text] = story.finds(uncaused=1).counts["uncaused"].texts
        assert text.endswith(f"while {whom} had it")


def test_a_message_that_was_sent_once_is_not_there_under_two_ids_whatever_its_receipt_says() -> None:
    """A receipt without an id says that the broker had it already, and an id does not say of which
    partition.
    """
    story = Story(messages=1)
    story.history.sent[0][0].confirm(BEGAN_MS + 5)
    story.deliver(0)
    story.finds()
    story.deliver(0, 1500, entry_id=4)
    story.finds(doubled=1)
    story = Story(messages=1)
    story.deliver(0, partition=0)
    story.deliver(0, 1500, partition=1)
    story.finds(doubled=1)


def test_a_message_is_stored_as_often_as_it_was_sent_at_most() -> None:
    story = Story(messages=1)
    story.history.sent[0][0].send(BEGAN_MS + 3, 100)
    story.deliver(0)
    story.deliver(0, 1500, entry_id=4)
    story.finds(stored_twice=1)
    story.deliver(0, 1600, entry_id=5)
    [text] = story.finds(stored_twice=2, doubled=1).counts["doubled"].texts
    assert text.endswith("under 3 ids, and sent 2 times")


# -- keys ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("order", "wanted"), [((0, 1, 2), {}), ((0, 2, 1), {"out_of_order": 1})])
def test_what_comes_again_of_a_key_comes_before_what_is_newer_of_it(
    order: tuple[int, ...], wanted: dict[str, int]
) -> None:
    story = Story("Key_Shared", messages=3, keys=1)
    story.deliver(0, 1000, acked_ms=0)
    story.deliver(1, 1000, acked_ms=0)
    story.history.sessions[0].leave(BEGAN_MS + 1500)
    story.history.sessions[0].end(BEGAN_MS + 1500, is_left=True)
    for place, number in enumerate(order):
        story.deliver(number, 2000 + place, session=1)
    story.finds(**wanted)


def test_what_a_consumer_asked_for_again_may_come_behind_what_it_had_already() -> None:
    story = Story("Key_Shared", messages=2, keys=1)
    story.deliver(0, 1000, acked_ms=0).nack(BEGAN_MS + 1010)
    story.deliver(1, 1005)
    story.deliver(0, 1020, redeliveries=1)
    story.finds()


def test_a_key_may_be_at_a_consumer_of_each_partition() -> None:
    story = Story("Key_Shared", messages=2, keys=1)
    story.deliver(0, 1000, partition=0, acked_ms=1100).acknowledge(BEGAN_MS + 1099)
    story.deliver(1, 1050, partition=1, session=1, acked_ms=1100)
    story.finds()
    story.got[1].partition = 0
    story.finds(two_at_a_key=1)


# -- room ----------------------------------------------------------------------------------------------------


def test_a_consumer_gets_no_more_than_it_asked_for() -> None:
    story = Story()
    story.history.sessions[0].queue = 3
    for number in range(3):
        story.deliver(number, 1000 + number, acked_ms=1500)
        story.got[-1].acknowledge(BEGAN_MS + 1400)
    # What it has acknowledged, or asked for again, has made room at that moment.
    story.deliver(3, 1400, acked_ms=1500)
    for number in range(4, 10):
        story.deliver(number, 1600 + number, session=1)
    story.finds()
    story.got[3].at_ms = BEGAN_MS + 1399
    [text] = story.finds(unasked=1).counts["unasked"].texts
    assert text.endswith("3 unsettled were there, 3 asked for")


# -- connections ---------------------------------------------------------------------------------------------


def test_a_consumer_that_is_closed_for_no_reason_is_noted() -> None:
    """What it held may come again, so that a broker could excuse anything by closing it."""
    story = Story()
    story.deliver_all()
    story.do(500, "burst of 5 messages")
    story.history.sessions[0].end(BEGAN_MS + 2000)
    story.history.sessions[1].leave(BEGAN_MS + 1900)
    story.history.sessions[1].end(BEGAN_MS + 2000, is_left=True)
    [note] = story.finds().notes
    assert note.startswith("1 times a consumer was closed, or its connection broke, before anything")
    story.do(1990, "unload")
    assert story.finds().notes == []


# -- receipts ------------------------------------------------------------------------------------------------


def test_receipts_that_are_held_back_are_late() -> None:
    """Both other times count from the receipt, so that it makes everything in time."""
    story = Story(messages=2)
    story.deliver_all(3000)
    for one in story.history.sent[0]:
        one.receipt_ms = BEGAN_MS + 3000
    found = story.finds()
    assert (found.prompt_ms, found.receipt_ms) == ([0, 1, 1], [2990, 3000, 3000])
    bounded = Expect(prompt=Duration(500), receipt=Duration(2000))
    assert found.verdict(bounded) == "late"
    assert found.late(bounded)[0].startswith("99 of 100 receipts were 3,000 ms late")
    # Those of messages that were sent again, too: an unload is no excuse for so long a time.
    for one in story.history.sent[0]:
        one.tries = 2
    assert story.finds().verdict(bounded) == "late"
    story.probe(1500, late_ms=1100.0)
    assert story.check().verdict(bounded) == "not shown"


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
