"""The checker, on histories written by hand: what is planted is found, and what is allowed is not."""

from __future__ import annotations

import re

import pytest

from geminga.cli.chaos.checking.broker_time import BrokerTime
from geminga.cli.chaos.checking.check import ANSWER_MS
from geminga.cli.chaos.checking.deliveries import END_HEARD_MS, IN_FLIGHT_MS, SAVED_WITHIN_MS
from geminga.cli.chaos.checking.history import Fault, Fencing, Jump, Left, Producing, Seek, Taking
from geminga.cli.chaos.checking.scenario import Duration, Expect, Scenario
from tests.cli.chaos.story import BEGAN_MS, Story


def test_a_run_without_a_fault() -> None:
    story = Story()
    story.deliver_all()
    found = story.finds()
    assert (found.sent, found.confirmed, found.deliveries, found.again) == (10, 10, 10, 0)
    assert found.prompt_ms == [950, 995, 995]


# -- operators ---------------------------------------------------------------------------------------------


def restored(*, is_orderly: bool = True) -> Story:
    """Ten messages, confirmed up to 95 ms, and a copy of the first five. All came and were acknowledged at
    1000 ms. The copy is put in place at 2000 ms.
    """
    story = Story()
    story.deliver_all()
    story.crash(2000)
    story.history.takings.append(
        Taking(
            what="restore",
            copied_ms=BEGAN_MS + 50,
            copied_until_ms=BEGAN_MS + 60,
            is_orderly=is_orderly,
            asked_ms=BEGAN_MS + 2000,
            done_ms=BEGAN_MS + 2100,
        )
    )
    return story


def test_what_was_confirmed_before_a_copy_has_to_come_again_after_its_restore() -> None:
    story = restored()
    for number in range(4):
        story.deliver(number, 3000, session=2)
    found = story.finds(lost=1)
    [text] = found.counts["lost"].texts
    assert text == "topic 0, s: p0 number 4, sent at 0.04 s: not again after a seek or a restore"
    assert found.taken == 5
    story.deliver(4, 3000, session=2)
    assert story.finds().taken == 5


def test_ids_after_a_restore_are_of_other_messages() -> None:
    story = restored()
    for number in range(5):
        story.deliver(number, 3000, session=2)
    (sent,) = (one for one in story.history.sent[0] if one.number == 9)
    sent.confirm(BEGAN_MS + 2500, 7, 5)
    story.got[9].entry_id = 5
    story.deliver(9, 3000, session=2, entry_id=5)
    assert story.finds().taken == 4


@pytest.mark.parametrize(("is_orderly", "wanted"), [(True, {"doubled": 1}), (False, {})])
def test_an_acknowledgement_before_a_copy_holds_after_its_restore(
    is_orderly: bool, wanted: dict[str, int]
) -> None:
    story = restored(is_orderly=is_orderly)
    story.got[0].acknowledge(BEGAN_MS + 20)
    story.got[0].confirm(BEGAN_MS + 30)
    story.got[0].at_ms = BEGAN_MS + 10
    for number in range(1, 5):
        story.deliver(number, 3000, session=2)
    story.finds()
    story.deliver(0, 3000, session=2)
    story.finds(**wanted)


def test_what_may_have_been_in_removed_files_is_not_shown() -> None:
    story = Story()
    story.deliver_all()
    del story.got[4]
    at_ms = BEGAN_MS + 2000
    story.history.takings.append(Taking(what="entry-log", asked_ms=at_ms, done_ms=at_ms))
    found = story.check()
    assert (found.taken, found.verdict(Expect())) == (0, "not shown")
    assert found.not_shown[0].startswith("1 confirmed messages are missing")
    story.deliver(4)
    assert story.check().verdict(Expect()) == "passed"


# -- lost ----------------------------------------------------------------------------------------------------


def test_a_message_that_never_came_is_lost() -> None:
    story = Story()
    story.deliver_all()
    del story.got[4]
    [text] = story.finds(lost=1).counts["lost"].texts
    assert text == "topic 0, s: p0 number 4, sent at 0.04 s: never delivered"


def test_a_message_that_came_and_was_never_acknowledged_is_lost() -> None:
    story = Story()
    story.deliver_all()
    story.got[4] = story.deliver(4, acked_ms=0)
    story.got[4].nack(BEGAN_MS + 1005)
    story.got.pop()
    texts = story.finds(lost=1).counts["lost"].texts
    assert texts == ["topic 0, s: p0 number 4, sent at 0.04 s: asked for again, and never delivered again"]


def test_an_acknowledgement_without_an_answer_is_counted_and_excuses() -> None:
    story = Story()
    story.deliver_all()
    story.got[4].confirm(0)
    story.history.sessions[0].end(BEGAN_MS + 2000)
    assert story.finds().unconfirmed == 1
    story.deliver(4, 2500, session=1)
    assert (story.finds().again, story.finds().unconfirmed) == (1, 0)


def test_an_acknowledgement_that_nobody_answers_though_its_consumer_stays_is_found() -> None:
    story = Story()
    story.deliver_all()
    story.got[4].confirm(0)
    [text] = story.finds(unanswered=1).counts["unanswered"].texts
    assert text == "topic 0, s: acknowledgement of 7:4 at 1.00 s"
    story.history.sessions[0].leave(story.got[4].at_ms + ANSWER_MS - 1)
    story.finds()


def test_a_message_without_a_receipt_may_be_missing_or_not() -> None:
    story = Story()
    story.deliver_all()
    story.history.sent[0][4].receipt_ms = 0
    story.finds()
    del story.got[4]
    story.finds()


def test_a_message_that_one_subscription_lacks_is_lost() -> None:
    story = Story()
    story.deliver_all()
    story.subscribe("Shared", deliveries=story.got[:9])
    story.subscribe("Shared", topic=1)
    story.finds(lost=1)


def test_what_the_broker_says_is_left_is_what_the_history_says() -> None:
    story = Story()
    story.deliver_all()
    nothing = Left(subscription=0, partition=-1, backlog=0, pending=0, delayed=0)
    story.history.left = [nothing]
    story.finds()
    story.history.left = [Left(subscription=0, partition=-1, backlog=2, pending=1, delayed=0)]
    assert story.finds(left_behind=2).counts["left_behind"].texts == [
        "topic 0, s: backlog 2, of which the history explains 0",
        "topic 0, s: pending 1, of which the history explains 0",
    ]
    # An acknowledgement that was on its way when its consumer went may be lost.
    story.history.left = [Left(subscription=0, partition=-1, backlog=1, pending=0, delayed=0)]
    story.got[4].confirm(0)
    story.history.sessions[0].end(BEGAN_MS + 2000)
    story.finds()


def test_after_a_seek_everything_has_to_come_again() -> None:
    story = Story()
    story.deliver_all()
    story.history.seeks.append(Seek(asked_ms=BEGAN_MS + 1500, done_ms=BEGAN_MS + 1550))
    for session in story.history.sessions:
        session.end(BEGAN_MS + 1501)
    came_back = story.join(1510).number
    found = story.finds(lost=10)
    assert found.counts["lost"].texts[0].endswith("sent at 0.00 s: not again after a seek or a restore")
    for number in range(9):
        story.deliver(number, 1600 + number, session=came_back)
    story.finds(lost=1)
    # To a consumer that came back before the seek was answered.
    story.deliver(9, 1540, session=came_back)
    story.finds()


# -- again ---------------------------------------------------------------------------------------------------


def test_a_delivery_after_its_acknowledgement_is_found() -> None:
    story = Story()
    story.deliver_all()
    story.deliver(3, 2000)
    story.finds(doubled=1)


@pytest.mark.parametrize(("session", "whom"), [(0, "the same consumer"), (1, "another consumer")])
def test_a_further_delivery_needs_a_cause(session: int, whom: str) -> None:
    story = Story()
    first = story.deliver(3, 900, acked_ms=0)
    story.deliver_all()
    story.got[4].session = session
    assert story.finds(uncaused=1).counts["uncaused"].texts[0].endswith(f"while {whom} had it")
    first.nack(BEGAN_MS + 950)
    story.got[4].redeliveries = 1
    assert story.finds().again == 1


def test_what_a_consumer_held_that_left_may_come_to_another() -> None:
    story = Story()
    story.deliver(3, 900, acked_ms=0)
    story.deliver_all()
    story.got[4].session = 1
    story.history.sessions[0].leave(BEGAN_MS + 1004)
    story.finds(uncaused=1)
    story.history.sessions[0].leave(BEGAN_MS + 1003)
    story.finds()


def test_the_end_of_a_connection_may_be_heard_of_late() -> None:
    story = Story()
    story.deliver(3, 900, acked_ms=0)
    story.deliver_all()
    story.got[4].session = 1
    story.history.sessions[0].end(BEGAN_MS + 1003 + END_HEARD_MS)
    story.finds()
    story.history.sessions[0].ended_ms += 1
    story.finds(uncaused=1)
    # On the same connection an end that follows explains nothing.
    story.history.sessions[0].ended_ms = BEGAN_MS + 1010
    story.finds()
    story.got[4].session = 0
    story.finds(uncaused=1)


@pytest.mark.parametrize(("redeliveries", "is_fitting"), [(0, False), (1, True), (2, False)])
def test_the_count_of_redeliveries_fits_the_negative_acknowledgements(
    redeliveries: int, is_fitting: bool
) -> None:
    story = Story()
    story.deliver(3, 900, acked_ms=0).nack(BEGAN_MS + 950)
    story.deliver_all()
    story.got[4].redeliveries = redeliveries
    story.finds(**({} if is_fitting else {"miscounted": 1}))
    # Of a first delivery too, and not after all consumers have come back.
    story = Story()
    story.deliver_all()
    story.got[4].redeliveries = redeliveries
    story.finds(**({"miscounted": 1} if redeliveries else {}))


def test_what_was_on_its_way_to_a_consumer_that_left_has_the_count_of_before() -> None:
    story = Story()
    left = story.join(0)
    story.deliver(3, 850, acked_ms=0).nack(BEGAN_MS + 860)
    story.deliver(3, 900, acked_ms=0, redeliveries=1).nack(BEGAN_MS + 950)
    stray = story.deliver(3, 960, acked_ms=0, redeliveries=1, session=left.number)
    story.deliver_all()
    story.got[6].redeliveries = 2
    story.finds(miscounted=1, uncaused=1)
    left.leave(BEGAN_MS + 955)
    left.end(BEGAN_MS + 970, is_left=True)
    assert stray.number == story.got[6].number == 3
    story.finds()


def test_a_crash_forgets_what_was_acknowledged_shortly_before_it() -> None:
    story = Story()
    story.deliver_all()
    story.crash(1004 + SAVED_WITHIN_MS)
    again = story.deliver(3, 3000, session=2)
    found = story.finds()
    assert (found.again, found.again_after_crash) == (1, 1)
    # One that was saved long before, and one after the crash.
    story.got[3].confirm(BEGAN_MS + 1003)
    story.finds(doubled=1)
    story.got[3].confirm(BEGAN_MS + 1004)
    story.deliver(3, again.at_ms - BEGAN_MS + 500, session=2)
    story.finds(doubled=1)


def test_a_machine_that_held_up_the_broker_held_up_its_saving_too() -> None:
    story = Story()
    story.deliver_all()
    story.crash(1104 + SAVED_WITHIN_MS)
    story.deliver(3, 3000, session=2)
    story.finds(doubled=1)
    story.probe(1500, broker_waits_ms=100)
    story.finds()


def test_while_topics_are_fenced_what_was_acknowledged_may_come_again() -> None:
    story = Story()
    story.deliver_all()
    story.deliver(3, 2000)
    story.finds(doubled=1)
    story.history.fencings.append(Fencing(from_ms=BEGAN_MS + 900, to_ms=BEGAN_MS + 1500))
    assert story.finds().again_after_crash == 1
    story.history.fencings[:] = [Fencing(from_ms=BEGAN_MS + 900, to_ms=BEGAN_MS + 1000)]
    story.finds(doubled=1)


def test_a_busy_machine_lets_ends_and_deliveries_be_heard_of_later() -> None:
    """By what client and broker waited for in that time, and not by waits before it."""
    story = Story()
    story.deliver(3, 900, acked_ms=0)
    story.deliver_all()
    story.got[4].session = 1
    story.history.sessions[0].end(BEGAN_MS + 1003 + END_HEARD_MS + 700)
    story.finds(uncaused=1)
    story.probe(100, client_waits_ms=5000)
    story.probe(1003 + END_HEARD_MS, client_waits_ms=400, broker_waits_ms=299)
    story.probe(4000)
    story.probe(6000, client_waits_ms=5000)
    story.finds(uncaused=1)
    story.history.probes[1].client_waits_ms += 1
    story.finds()

    story = Story("Failover")
    story.deliver_all()
    story.deliver(3, 1003 + IN_FLIGHT_MS + 500, session=1)
    story.history.sessions[0].lose_turn(BEGAN_MS + 1020)
    story.finds(doubled=1)
    story.probe(3000, broker_waits_ms=500)
    story.finds()


def test_a_machine_without_time_excuses_what_came_eight_times_as_late_at_most() -> None:
    story = Story()
    story.deliver(3, 900, acked_ms=0)
    story.deliver_all()
    story.got[4].session = 1
    for at_ms in range(0, 60_000, 100):
        story.probe(at_ms, client_waits_ms=100, broker_waits_ms=100)
    story.history.sessions[0].end(BEGAN_MS + 1003 + 8 * END_HEARD_MS)
    story.finds()
    story.history.sessions[0].ended_ms += 1
    story.finds(uncaused=1)


def test_a_stop_in_order_allows_nothing() -> None:
    story = Story()
    story.deliver_all()
    story.do(1500, "stop")
    story.deliver(3, 2000)
    story.finds(doubled=1)


@pytest.mark.parametrize(("at_ms", "is_allowed"), [(1003 + IN_FLIGHT_MS, True), (1005 + IN_FLIGHT_MS, False)])
def test_what_was_given_to_the_next_consumer_may_arrive_after_the_former_acknowledged_it(
    at_ms: int, is_allowed: bool
) -> None:
    story = Story("Failover")
    story.deliver_all()
    story.deliver(3, at_ms, session=1)
    story.history.sessions[0].lose_turn(BEGAN_MS + 1020)
    story.finds(**({} if is_allowed else {"doubled": 1}))


def test_a_message_under_two_ids_needs_a_second_try() -> None:
    story = Story()
    story.deliver_all()
    story.deliver(3, 2000, entry_id=99)
    story.finds(doubled=1)
    story.history.sent[0][3].tries = 2
    found = story.finds(stored_twice=1)
    assert found.wrong(Expect(stored_twice=0)) == [
        "stored twice: 1, expected 0 at most (sent again for want of a receipt, and stored twice)"
    ]


# -- order ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["Exclusive", "Failover"])
def test_a_broken_order_is_found(kind: str) -> None:
    story = Story(kind)
    for number in (0, 1, 3, 2, 4, 5, 6, 7, 8, 9):
        story.deliver(number, 1000)
    # After a later message of its producer, and after a later entry of the topic.
    assert story.finds(out_of_order=2).counts["out_of_order"].texts == [
        "topic 0, s: producer 0 number 2 in 7:2 at 1.00 s: after number 3",
        "topic 0, s: producer 0 number 2 in 7:2 at 1.00 s: after 7:3 on the same connection",
    ]
    # One that was refused and sent again has lost its place; the order of the entries stays.
    story.history.sent[0][2].refuse()
    story.finds(out_of_order=1)
    shared = Story("Shared")
    shared.got.extend(story.got)
    shared.finds()


def test_a_consumer_that_takes_over_gets_what_its_predecessor_had() -> None:
    story = Story("Failover")
    for number in (0, 1, 2, 3):
        story.deliver(number, 1000, acked_ms=0)
    for number in range(10):
        story.deliver(number, 1500 + number, session=1)
    story.finds(uncaused=4)
    story.history.sessions[0].lose_turn(BEGAN_MS + 1400)
    assert story.finds().again == 4


def test_a_broken_order_of_one_key_is_found() -> None:
    story = Story("Key_Shared", keys=2)
    for number in (1, 0, 3, 2, 5, 4, 7, 6, 9, 8):
        story.deliver(number)
    story.finds()
    story = Story("Key_Shared", keys=2)
    for number in (0, 1, 4, 3, 2, 5, 6, 7, 8, 9):
        story.deliver(number)
    story.finds(out_of_order=1)


def test_a_key_is_at_one_consumer_at_a_time() -> None:
    story = Story("Key_Shared", keys=2)
    story.deliver_all()
    for one in story.got[::2]:
        one.session = 1
    story.finds()
    # 2 and 0 have a key, and 0 is with the other consumer until 2 has come.
    story.got[2].session = 0
    story.got[0].ack_ms = story.got[2].at_ms + 1
    story.finds(two_at_a_key=1)
    story.history.sessions[1].leave(story.got[2].at_ms)
    story.finds()


def test_delayed_messages_come_when_they_are_due_and_not_in_turn() -> None:
    story = Story("Key_Shared", keys=2, delay_ms=500)
    for number in (4, 2, 0, 1, 3, 5, 9, 8, 7, 6):
        story.deliver(number)
    story.finds()


# -- times ---------------------------------------------------------------------------------------------------


def test_an_early_delivery_is_found() -> None:
    story = Story(delay_ms=2000)
    story.deliver_all(2090)
    story.finds()
    story.got[9].at_ms = BEGAN_MS + 2089
    assert story.finds(early=1).early_by_ms == 1
    assert not story.check(early_by=1).counts["early"].count
    # A second time as well: a broker may lose the delay of what it is asked for again.
    again = Story(delay_ms=2000)
    again.deliver(9, 2095, acked_ms=0).nack(BEGAN_MS + 2080)
    again.deliver_all(2100)
    again.got[-1].at_ms, again.got[-1].redeliveries = BEGAN_MS + 2089, 1
    again.finds(early=1)
    exclusive = Story("Exclusive", delay_ms=2000)
    exclusive.deliver_all(100)
    exclusive.finds()


def test_a_moved_clock_makes_messages_due() -> None:
    hour_ms = 3_600_000
    story = Story(delay_ms=hour_ms)
    begin_ms = BEGAN_MS + 900
    jump = Jump(asked_ms=begin_ms, done_ms=begin_ms + 50, from_ms=begin_ms, to_ms=begin_ms + hour_ms)
    story.history.jumps.append(jump)
    story.deliver_all(1000)
    assert story.finds().late_ms[2] <= 150
    # A move that has not been answered yet.
    jump.done_ms = 0
    story.finds()
    # Before the move was asked for, nothing is due.
    story.got[0].at_ms = BEGAN_MS + 899
    story.finds(early=1)


def test_what_a_move_makes_due_comes_in_due_order() -> None:
    hour_ms = 3_600_000
    story = Story()
    for number, one in enumerate(story.history.sent[0]):
        one.delay_ms = (10 - number) * hour_ms
    asked_ms = BEGAN_MS + 10_000
    jump = Jump(asked_ms=asked_ms, done_ms=asked_ms + 900, from_ms=asked_ms, to_ms=asked_ms + 11 * hour_ms)
    story.history.jumps.append(jump)
    story.deliver_all(10_100)
    story.finds(out_of_turn=9)
    # A move does not wait for a consumer that is full, also if it has room again in the end.
    for session in story.history.sessions:
        session.queue = 5
    for one in story.got:
        one.acknowledge(one.at_ms)
        one.confirm(one.at_ms)
    story.finds(out_of_turn=4)
    for session in story.history.sessions:
        session.queue, session.began_ms = 1000, asked_ms - 1001
    story.finds(out_of_turn=9)
    jump.has_waiting = True
    story.finds(out_of_turn=9)  # the broker says so, and the consumers knew nothing of it
    jump.has_waiting = False
    story.history.sessions[1].began_ms = asked_ms - 999
    story.finds()
    for session in story.history.sessions:
        session.queue = session.began_ms = 0
    # What a consumer held that left comes later, and so does what nobody had room for.
    jump.has_waiting = True
    story.finds()
    jump.has_waiting = False
    story.history.sessions[1].leave(BEGAN_MS + 10_101)
    story.finds()
    story.history.sessions[1].leave(0)
    story.got.reverse()
    for at_ms, one in enumerate(story.got, BEGAN_MS + 10_100):
        one.at_ms = at_ms
    story.finds()


def test_a_clock_goes_where_it_is_to_go_and_never_back() -> None:
    story = Story()
    story.deliver_all()
    for asked_ms, from_ms, to_ms in ((20_000, 20_000, 80_000), (30_000, 90_000, 150_000)):
        story.history.jumps.append(
            Jump(
                asked_ms=BEGAN_MS + asked_ms,
                length_ms=60_000,
                done_ms=BEGAN_MS + asked_ms + 9,
                from_ms=BEGAN_MS + from_ms,
                to_ms=BEGAN_MS + to_ms,
            )
        )
    story.finds()
    story.history.jumps[1].to_ms -= 1
    story.finds(clock=1)
    story.history.jumps[1].from_ms = story.history.jumps[0].to_ms - 1
    story.history.jumps[1].to_ms = story.history.jumps[1].from_ms + 60_000
    assert story.finds(clock=1).counts["clock"].texts == ["it was set back by 1 ms"]


@pytest.mark.parametrize(
    ("bound_ms", "held_up_ms", "verdict"),
    [(700, 0, "passed"), (699, 0, "late"), (600, 99, "late"), (600, 100, "not shown")],
)
def test_lateness_is_judged_by_what_the_machine_held_up(bound_ms: int, held_up_ms: int, verdict: str) -> None:
    story = Story(delay_ms=2000)
    for number in range(10):
        story.deliver(number, 10 * number + 5 + 2000 + (700 if number == 9 else 3))
    story.probe(500, client_waits_ms=held_up_ms)
    story.probe(3000)
    story.probe(40_000, client_waits_ms=9000)
    found = story.finds()
    assert found.late_ms == [3, 700, 700]
    for name in ("late", "p99"):
        expect = Expect(**{name: Duration(bound_ms)})  # type: ignore[arg-type]
        assert found.verdict(expect) == verdict
        said = found.untold(expect) + found.late(expect)
        advised = ["bounds 3 times as long (--slack)" in text for text in said]
        assert advised == ([] if verdict == "passed" else [verdict == "not shown"])


@pytest.mark.parametrize("bound_ms", [1, 50, 600, 699])
def test_the_advice_for_a_busy_machine_would_have_helped(bound_ms: int) -> None:
    story = Story(delay_ms=2000)
    for number in range(10):
        story.deliver(number, 10 * number + 5 + 2000 + 700)
    story.probe(500, client_waits_ms=5000)
    scenario = Scenario(name="mine", expect=Expect(late=Duration(bound_ms), p99=Duration(bound_ms)))
    found = story.finds()
    for text in found.untold(scenario.expect):
        [times] = re.findall(r"with bounds ([\d,]+) times as long", text)
        slack = int(times.replace(",", ""))
        assert found.verdict(scenario.with_slack(slack).expect) == "passed"
        half = found.verdict(scenario.with_slack(slack / 2).expect)
        assert half == ("not shown" if slack > 3 else "passed")


def test_no_factor_helps_a_bound_of_nothing() -> None:
    story = Story(delay_ms=2000)
    story.deliver(0, 2705)
    story.probe(500, client_waits_ms=5000)
    [text] = story.check().untold(Expect(late=Duration(0)))
    assert "--slack" not in text
    assert "a bound of 0 ms" in text


def test_silence_on_a_machine_without_time_shows_nothing() -> None:
    story = Story()
    story.deliver_all()
    del story.got[4]
    story.history.give_up("nothing moved for 10 s", 10_000)
    assert story.check().verdict(Expect()) == "wrong"
    story.probe(55_000, broker_waits_ms=5000)
    assert story.check().verdict(Expect()) == "wrong"
    story.probe(59_000, broker_waits_ms=1)
    found = story.check()
    assert found.verdict(Expect()) == "not shown"
    assert "bounds 3 times as long (--slack)" in found.not_shown[0]
    assert found.counts["lost"].count == 0


# -- what else -----------------------------------------------------------------------------------------------


def test_other_bytes_keys_properties_and_ids_are_found() -> None:
    story = Story(keys=2)
    story.deliver_all()
    story.got[0].producer = -1
    story.got[1].key = "k0"
    story.got[2].trace = "t3"
    story.got[3].crc += 1
    story.got[4].entry_id = 77
    texts = story.finds(damaged=5, lost=4).counts["damaged"].texts
    assert [text.partition(": its ")[2] for text in texts] == [
        "payload",
        "key: 'k1' was sent, 'k0' came",
        "properties: 't2' was sent, 't3' came",
        "payload: 103 was sent, 104 came",
        "receipt said 7:4",
    ]


def test_strangers_are_found() -> None:
    story = Story()
    story.deliver_all()
    story.deliver(3, producer=5)
    story.deliver(99)
    story.history.producers.append(Producing(topic=1, name="p1"))
    story.history.sent.append(story.history.sent[0][:1])
    story.deliver(0, producer=1)
    story.history.sent[1][0].producer = 0
    assert story.check().counts["unknown"].count == 2


def test_a_broker_that_ended_by_itself_fails_a_run_unless_it_may() -> None:
    story = Story()
    story.deliver_all()
    story.do(500, "segmentation fault", "ended")
    found = story.check()
    assert found.wrong(Expect()) == ["the broker ended by itself: segmentation fault"]
    assert found.wrong(Expect(broker_ends=True)) == []
    story.do(600, "it does not start again", "dead")
    assert story.check().wrong(Expect(broker_ends=True)) == ["it does not start again"]


def test_a_fault_that_took_no_effect_shows_nothing_where_it_is_needed() -> None:
    story = Story()
    story.deliver_all()
    fault = Fault(text="fault wire/cut", at_ms=BEGAN_MS)
    story.history.faults.append(fault)
    story.finds()
    fault.needs_hits = 1
    assert story.check().untold(Expect()) == ["fault wire/cut: took effect 0 times, 1 at least are needed"]
    fault.count(1)
    story.finds()


def test_a_fault_without_an_effect_is_noted_and_judges_nothing() -> None:
    story = Story()
    story.deliver_all()
    kinds = ("wire/cut", "clock/step", "process/kill", "bucket/fail")
    for kind in kinds:
        ends = kind == "process/kill"
        story.history.faults.append(Fault(text=f"fault {kind} x=1", at_ms=BEGAN_MS, ends_broker=ends))
    story.history.faults[-1].count(1)
    assert story.finds().notes == [
        "fault wire/cut x=1: took no effect; with needs_hits = 1 such a run is not shown"
    ]
    story.history.faults[0].needs_hits = 1
    assert story.check().notes == []


def test_a_loss_into_a_black_hole_is_noted_as_what_it_may_be() -> None:
    story = Story()
    story.deliver_all()
    story.history.faults.append(Fault(text="fault wire/black-hole command=MESSAGE", at_ms=BEGAN_MS, hits=3))
    assert story.finds().notes == []
    del story.got[4]
    [note] = story.finds(lost=1).notes
    assert note.startswith("wire/black-hole took 3 frames on connections that stayed open")
    assert note.endswith("do an unload or a kill after it")


def test_what_comes_again_after_a_black_hole_may_be_out_of_order_and_that_is_noted() -> None:
    """As after the unload that the note on losses asks for."""
    story = Story("Key_Shared", messages=3, keys=1)
    story.history.faults.append(Fault(text="fault wire/black-hole command=MESSAGE", at_ms=BEGAN_MS, hits=1))
    for number in (0, 2, 1):
        story.deliver(number, 1000 + number)
    [note] = story.finds(out_of_order=1).notes
    assert note.endswith("[expect] may allow it with out_of_order")
    story.history.faults.clear()
    assert story.check().notes == []


def test_a_run_that_was_broken_off_shows_nothing_and_accuses_nobody_of_what_is_missing() -> None:
    story = Story()
    story.history.broken.append("interrupted")
    assert story.check().verdict(Expect()) == "wrong"
    story.history.is_drained = False
    assert story.check().verdict(Expect()) == "not shown"
    story.deliver(3)
    story.deliver(3, 2000)
    assert story.check().verdict(Expect()) == "wrong"


def test_examples_are_few_and_counts_are_whole() -> None:
    lost = Story(messages=5000).check().counts["lost"]
    assert (lost.count, len(lost.texts)) == (5000, 5)


def test_the_brokers_time_within_bounds() -> None:
    time = BrokerTime(
        100,
        [
            Jump(asked_ms=1000, done_ms=1050, from_ms=1100, to_ms=9000),
            Jump(asked_ms=2000, done_ms=2010, from_ms=9950, to_ms=20_000),
        ],
    )
    assert (time.at_least_ms(999), time.at_most_ms(999)) == (1099, 1099)
    assert (time.at_least_ms(1020), time.at_most_ms(1020)) == (1120, 9020)
    assert (time.at_least_ms(1050), time.at_most_ms(1050)) == (9000, 9050)
    assert time.wall_ms(1050) == 950
    assert time.wall_ms(5000) == 1000
    assert time.wall_ms(9500) == 1550
    assert time.wall_ms(15_000) == 2000
    assert time.wall_ms(30_000) == 12_010
    unanswered = BrokerTime(100, [Jump(asked_ms=1000, to_ms=9000)])
    assert (unanswered.at_least_ms(5000), unanswered.at_most_ms(5000)) == (5100, 13_000)
