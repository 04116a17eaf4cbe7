"""The checker, on histories written by hand: what is planted is found, and what is allowed is not."""

from __future__ import annotations

import pytest

from geminga.cli.chaos.checking.broker_time import BrokerTime
from geminga.cli.chaos.checking.check import IN_FLIGHT_MS, Findings, check
from geminga.cli.chaos.checking.history import (
    Doing,
    Fencing,
    History,
    Jump,
    MessageId,
    Producing,
    Received,
    Receiving,
    Seek,
    Sent,
    Session,
)
from geminga.cli.chaos.checking.scenario import Duration, Expect

BEGAN_MS = 1_800_000_000_000
COUNTS = ("lost", "doubled", "out_of_order", "early", "damaged", "unknown")
FIRST, SECOND = Session(1, BEGAN_MS), Session(2, BEGAN_MS + 1)


class Story:
    """One producer, one subscription; times in ms after the beginning."""

    def __init__(self, kind: str = "Shared", messages: int = 10, *, delay_ms: int = 0, keys: int = 0) -> None:
        self.history = History(BEGAN_MS, ended_ms=BEGAN_MS + 60_000)
        self.history.producers.append(Producing(0, "p0"))
        sent = []
        for number in range(messages):
            one = Sent(0, number, number % keys if keys else -1, delay_ms)
            one.first_ms, one.receipt_ms, one.tries = BEGAN_MS + 10 * number, BEGAN_MS + 10 * number + 5, 1
            sent.append(one)
        self.history.sent.append(sent)
        self.got = Receiving(0, "s", kind)
        self.history.subscriptions.append(self.got)

    def deliver(
        self,
        number: int,
        at_ms: int = 1000,
        *,
        acked_ms: int | None = None,
        entry_id: int = -1,
        session: Session = FIRST,
        producer: int = 0,
        is_whole: bool = True,
    ) -> Received:
        message_id: MessageId = (-1, 7, number if entry_id < 0 else entry_id, -1)
        one = Received(producer, number, BEGAN_MS + at_ms, message_id, session, is_whole=is_whole)
        one.acked_ms = BEGAN_MS + (at_ms + 1 if acked_ms is None else acked_ms) if acked_ms != 0 else 0
        self.got.deliveries.append(one)
        return one

    def deliver_all(self, at_ms: int = 1000) -> None:
        for number in range(len(self.history.sent[0])):
            self.deliver(number, at_ms + number)

    def check(self, **expect: int) -> Findings:
        return check(self.history, Expect(**{k: Duration(v) for k, v in expect.items()}))  # type: ignore[arg-type]

    def finds(self, **wanted: int) -> Findings:
        """These counts, and nothing else."""
        found = self.check()
        counts = {name: getattr(found, name).count for name in COUNTS}
        assert counts == {**dict.fromkeys(COUNTS, 0), **wanted}
        assert bool(found.failures(Expect())) == bool(wanted)
        return found


def test_a_run_without_a_fault() -> None:
    story = Story()
    story.deliver_all()
    found = story.finds()
    assert (found.sent, found.confirmed, found.deliveries, found.again) == (10, 10, 10, 0)
    assert found.prompt_ms == [950, 995, 995]


def test_a_lost_message_is_found() -> None:
    story = Story()
    story.deliver_all()
    del story.got.deliveries[4]
    assert story.finds(lost=1).lost.texts == ["topic 0, s: p0 number 4"]


def test_a_message_without_a_receipt_may_be_missing_or_not() -> None:
    story = Story()
    story.deliver_all()
    story.history.sent[0][4].receipt_ms = 0
    story.finds()
    del story.got.deliveries[4]
    story.finds()


def test_a_message_that_one_subscription_lacks_is_found() -> None:
    story = Story()
    story.deliver_all()
    story.history.subscriptions.append(Receiving(0, "other", "Shared", story.got.deliveries[:9]))
    story.history.subscriptions.append(Receiving(1, "of another topic", "Shared"))
    story.finds(lost=1)


def test_a_delivery_after_its_acknowledgement_is_found() -> None:
    story = Story()
    story.deliver_all()
    story.deliver(3, 2000)
    story.finds(doubled=1)


def test_a_delivery_before_its_acknowledgement_is_allowed() -> None:
    story = Story()
    story.deliver_all()
    story.got.deliveries[3].acked_ms = 0
    story.deliver(3, 2000)
    assert story.finds().again == 1


def test_after_a_crash_what_was_acknowledged_before_may_come_again() -> None:
    story = Story()
    story.deliver_all()
    story.history.doings.append(Doing(BEGAN_MS + 1500, "kill", "crash"))
    story.deliver(3, 2000, acked_ms=2001)
    found = story.finds()
    assert (found.again, found.again_after_crash) == (1, 1)
    # The acknowledgement after the crash holds again.
    story.deliver(3, 2500)
    story.finds(doubled=1)


def test_while_topics_are_fenced_what_was_acknowledged_may_come_again() -> None:
    story = Story()
    story.deliver_all()
    story.deliver(3, 2000)
    story.finds(doubled=1)
    story.history.fencings.append(Fencing(BEGAN_MS + 900, BEGAN_MS + 1500))
    assert story.finds().again_after_crash == 1
    story.history.fencings[:] = [Fencing(BEGAN_MS + 900, BEGAN_MS + 1000)]
    story.finds(doubled=1)


def test_after_a_seek_everything_has_to_come_again() -> None:
    story = Story()
    story.deliver_all()
    story.history.doings.append(Doing(BEGAN_MS + 1500, "seek", "seek"))
    story.history.seeks.append(Seek(BEGAN_MS + 1500, BEGAN_MS + 1550))
    found = story.finds(lost=10)
    assert found.lost.texts[0].endswith("number 0, not again after a seek")
    for number in range(9):
        story.deliver(number, 1600 + number, acked_ms=1600 + number)
    found = story.finds(lost=1)
    assert found.lost.texts == ["topic 0, s: p0 number 9, not again after a seek"]
    # To a consumer that came back before the seek was answered.
    story.deliver(9, 1540, session=Session(5, BEGAN_MS + 1510))
    story.finds()


def test_a_stop_in_order_allows_nothing() -> None:
    story = Story()
    story.deliver_all()
    story.history.doings.append(Doing(BEGAN_MS + 1500, "stop"))
    story.deliver(3, 2000)
    story.finds(doubled=1)


@pytest.mark.parametrize(
    ("session", "at_ms", "doubled"),
    [
        (SECOND, 1500, 0),
        (FIRST, 1500, 1),
        (Session(3, BEGAN_MS + 1400), 1500, 1),
        (SECOND, 1004 + IN_FLIGHT_MS, 0),
        (SECOND, 1005 + IN_FLIGHT_MS, 1),
    ],
)
def test_what_is_on_its_way_to_another_consumer_may_still_arrive(
    session: Session, at_ms: int, doubled: int
) -> None:
    story = Story()
    story.deliver_all()
    assert story.got.deliveries[3].acked_ms == BEGAN_MS + 1004
    story.deliver(3, at_ms, session=session)
    story.finds(**({"doubled": 1} if doubled else {}))


def test_a_message_under_two_ids_needs_a_second_try() -> None:
    story = Story()
    story.deliver_all()
    story.deliver(3, 2000, entry_id=99)
    story.finds(doubled=1)
    story.history.sent[0][3].tries = 2
    assert story.finds().stored_twice == 1


@pytest.mark.parametrize("kind", ["Exclusive", "Failover"])
def test_a_broken_order_is_found(kind: str) -> None:
    story = Story(kind)
    for number in (0, 1, 3, 2, 4, 5, 6, 7, 8, 9):
        story.deliver(number, 1000)
    assert story.finds(out_of_order=1).out_of_order.texts[0].endswith("number 2 in 7:2: after number 3")
    shared = Story("Shared")
    shared.got.deliveries = story.got.deliveries
    shared.finds()


def test_a_redelivery_is_no_broken_order() -> None:
    story = Story("Exclusive")
    for number in (0, 1, 2, 3):
        story.deliver(number, 1000, acked_ms=0)
    for number in range(10):
        story.deliver(number, 2000)
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


def test_delayed_messages_come_when_they_are_due_and_not_in_turn() -> None:
    story = Story("Key_Shared", keys=2, delay_ms=500)
    for number in (4, 2, 0, 1, 3, 5, 9, 8, 7, 6):
        story.deliver(number)
    story.finds()


def test_an_early_delivery_is_found() -> None:
    story = Story(delay_ms=2000)
    story.deliver_all(2090)
    story.finds()
    early = story.got.deliveries[9]
    early.at_ms = BEGAN_MS + 2089
    found = story.finds(early=1)
    assert found.early_by_ms == 1
    assert not story.check(early_by=1).early.count
    exclusive = Story("Exclusive", delay_ms=2000)
    exclusive.deliver_all(100)
    exclusive.finds()


def test_how_late_delayed_messages_were() -> None:
    story = Story(delay_ms=2000)
    for number in range(10):
        story.deliver(number, 10 * number + 5 + 2000 + (700 if number == 9 else 3))
    found = story.finds()
    assert found.late_ms == [3, 700, 700]
    assert found.failures(Expect(late=Duration(700), p99=Duration(700))) == []
    assert found.failures(Expect(late=Duration(699))) == [
        "late: the latest is 700 ms late, expected 699 ms at most"
    ]


def test_a_moved_clock_makes_messages_due() -> None:
    hour_ms = 3_600_000
    story = Story(delay_ms=hour_ms)
    jump = Jump(BEGAN_MS + 900, BEGAN_MS + 950, BEGAN_MS + 900, BEGAN_MS + 900 + hour_ms)
    story.history.jumps.append(jump)
    story.deliver_all(1000)
    found = story.finds()
    assert found.late_ms[2] <= 150
    # Before the move was asked for, nothing is due.
    story.got.deliveries[0].at_ms = BEGAN_MS + 899
    story.finds(early=1)


def test_damage_and_strangers_are_found() -> None:
    story = Story()
    story.deliver_all()
    story.deliver(-1, producer=-1, is_whole=False)
    story.deliver(3, producer=5)
    story.deliver(99)
    story.finds(damaged=1, unknown=2)


def test_a_broker_that_ended_by_itself_fails_a_run_unless_it_may() -> None:
    story = Story()
    story.deliver_all()
    story.history.doings.append(Doing(BEGAN_MS + 500, "segmentation fault", "ended"))
    found = story.check()
    assert found.failures(Expect()) == ["the broker ended by itself: segmentation fault"]
    assert found.failures(Expect(broker_ends=True)) == []


def test_examples_are_few_and_counts_are_whole() -> None:
    story = Story(messages=5000)
    found = story.check()
    assert (found.lost.count, len(found.lost.texts)) == (5000, 5)


def test_the_brokers_time_within_bounds() -> None:
    time = BrokerTime(100, [Jump(1000, 1050, 1100, 9000), Jump(2000, 2010, 9950, 20_000)])
    assert (time.at_least_ms(999), time.at_most_ms(999)) == (1099, 1099)
    assert (time.at_least_ms(1020), time.at_most_ms(1020)) == (1120, 9020)
    assert (time.at_least_ms(1050), time.at_most_ms(1050)) == (9000, 9050)
    assert time.wall_ms(1050) == 950
    assert time.wall_ms(5000) == 1000
    assert time.wall_ms(9500) == 1550
    assert time.wall_ms(15_000) == 2000
    assert time.wall_ms(30_000) == 12_010
