"""Judges the deliveries of one subscription, in the order in which they came. Pure.

What a delivery is held against: what was sent, the deliveries of the same message before it, and what
consumers did with those. A further delivery needs a cause in the history. A consumer that is told to go
hears of it on its own connection, while another one may have the message already: `IN_FLIGHT_MS`.
"""

from __future__ import annotations

from bisect import bisect_right
from heapq import heappop, heappush
from typing import Final, NamedTuple

from geminga.cli.chaos.checking.broker_time import NEVER_MS, BrokerTime
from geminga.cli.chaos.checking.findings import Findings
from geminga.cli.chaos.checking.history import (
    History,
    Jump,
    MessageId,
    Received,
    Sent,
    Session,
)
from geminga.cli.chaos.checking.machine import Machine
from geminga.cli.chaos.checking.scenario import Expect

ORDERED: Final = frozenset({"Exclusive", "Failover"})
DELAYING: Final = frozenset({"Shared", "Key_Shared"})
"""Types of subscriptions to which the broker delays messages."""
IN_FLIGHT_MS: Final = 5000
"""So long a delivery may be on its way, and longer where the machine held it up. Two connections are in no
order.
"""
END_HEARD_MS: Final = 2000
"""So long the end of a connection, or of a consumer's turn, may be on its way, and longer as above."""
JOINED_WITHIN_MS: Final = 1000
"""A move waits a moment for what consumers ask for that have just come."""
SAVED_WITHIN_MS: Final = 1000
"""An acknowledgement that was confirmed so long before a crash may not be forgotten by it: cursors are saved
four times a second.
"""
STEPS_OF_A_MOVE: Final = 100
"""A long move of the clock goes in steps of this share of it, and keeps the due order of steps only."""


class Forgetting(NamedTuple):
    """A time in which the broker may go on from what was durable, or was set back."""

    from_ms: int
    to_ms: int
    reach_ms: int
    """How old an acknowledgement may be that is forgotten."""


def forgettings(history: History) -> list[Forgetting]:
    """All of a run: crashes, fences, seeks."""
    found = [Forgetting(seek.asked_ms, seek.done_ms, NEVER_MS) for seek in history.seeks]
    found += [Forgetting(one.from_ms, one.to_ms, SAVED_WITHIN_MS) for one in history.fencings]
    found += [
        Forgetting(
            one.asked_ms,
            one.done_ms,
            one.asked_ms - one.copied_ms + (0 if one.is_orderly else SAVED_WITHIN_MS),
        )
        for one in history.takings
        if one.what == "restore"
    ]
    from_ms = 0
    for doing in sorted(history.doings):
        if doing.kind in {"crash", "ended"}:
            from_ms = from_ms or doing.at_ms
        elif doing.kind in {"started", "dead"} and from_ms:
            # Until it runs again: what was confirmed before the crash may have been noted after it.
            found.append(Forgetting(from_ms, doing.at_ms, SAVED_WITHIN_MS))
            from_ms = 0
    if from_ms:
        found.append(Forgetting(from_ms, max(from_ms, history.ended_ms), SAVED_WITHIN_MS))
    return found


class DeliveryCheck:
    """`run` adds to the findings. Afterwards `of_message` has what came of each message, for the checks of
    what did not come.
    """

    def __init__(
        self, history: History, place: int, expect: Expect, machine: Machine, found: Findings
    ) -> None:
        """Of the subscription at this place of the history."""
        receiving = history.subscriptions[place]
        self._history = history
        self._place = place
        self._subscription = receiving.subscription
        self._deliveries = receiving.deliveries
        self._expect = expect
        self._machine = machine
        self._found = found
        self._time = BrokerTime(history.offset_ms, history.jumps)
        self._forgets = forgettings(history)
        self._asked = [jump.asked_ms for jump in history.jumps]
        self._keeps_turns = [self._is_kept(jump) for jump in history.jumps]
        self._is_ordered = receiving.subscription.type in ORDERED
        self._is_delaying = receiving.subscription.type in DELAYING
        self._by_key = receiving.subscription.type == "Key_Shared"
        self._by_id: dict[tuple[MessageId, int, int], list[Received]] = {}
        self._latest: dict[tuple[int, str], int] = {}
        self._before: dict[int, Received] = {}
        self._at_key: dict[tuple[int, str], list[Received]] = {}
        self._newest: dict[tuple[int, str], Received] = {}
        self._settles: dict[int, list[int]] = {}
        self._due: dict[tuple[int, int], int] = {}
        self._unheard: dict[int, list[int]] = {}
        self._full: set[tuple[int, int]] = set()
        """Moves of the clock in which a session had no room at some time, with its number."""
        self.again = 0
        """Deliveries of a message that the subscription had before."""
        self.again_after_crash = 0
        """Of those: acknowledged before what the broker may have forgotten it for."""
        self.early_by_ms = 0
        self.of_message: dict[tuple[int, int], list[Received]] = {}

    def run(self) -> None:
        for delivery in self._deliveries:
            sent = self._sent(delivery)
            if sent is not None:
                self._check(sent, delivery)

    def _sent(self, delivery: Received) -> Sent | None:
        """What it was, if it is what was sent."""
        if delivery.producer < 0:
            self._add("damaged", delivery, "its payload")
            return None
        sent = self._history.sent_as(delivery.producer, delivery.number)
        if sent is None or self._history.producers[sent.producer].topic != self._subscription.topic:
            self._add("unknown", delivery)
            return None
        parts = (
            ("payload", sent.crc, delivery.crc),
            ("key", sent.key, delivery.key),
            ("properties", sent.trace, delivery.trace),
        )
        for name, wanted, came in parts:
            if wanted != came:
                self._add("damaged", delivery, f"its {name}: {wanted!r} was sent, {came!r} came")
                return None
        place = delivery.ledger_id, delivery.entry_id
        if sent.tries == 1 and sent.ledger_id >= 0 and place != (sent.ledger_id, sent.entry_id):
            name = "doubled" if (sent.producer, sent.number) in self.of_message else "damaged"
            self._add(name, delivery, f"its receipt said {sent.ledger_id}:{sent.entry_id}")
        return sent

    def _check(self, sent: Sent, delivery: Received) -> None:
        name = sent.producer, sent.number
        # A restored broker gives ids again that it has given before, to other messages.
        own = (sent.producer, sent.number) if self._history.takings else (0, 0)
        same_id = self._by_id.setdefault((delivery.id, *own), [])
        self._check_early(sent, delivery)
        if name not in self.of_message:
            self._check_order(sent, delivery)
            self._check_turn(sent, delivery)
        elif not same_id:
            self._check_second_id(sent, delivery)
        if same_id:
            self._check_again(same_id, delivery)
        self._check_count(same_id, delivery)
        if self._is_ordered:
            self._check_session_order(delivery)
        if self._by_key and delivery.key:
            self._check_key(delivery)
            if not sent.delay_ms:
                self._check_key_order(same_id, delivery)
        self._check_room(delivery)
        same_id.append(delivery)
        self.of_message.setdefault(name, []).append(delivery)

    def _check_second_id(self, sent: Sent, delivery: Received) -> None:
        """A message is stored as often as it was sent at most; more than once only for want of a receipt."""
        others = {one.id for one in self.of_message[sent.producer, sent.number]}
        if sent.tries > 1:
            self._add("stored_twice", delivery)
        # Where it is not the one of the receipt, that has been said.
        elif sent.ledger_id < 0 or (delivery.ledger_id, delivery.entry_id) == (sent.ledger_id, sent.entry_id):
            self._add("doubled", delivery, "under another id, and sent once")
        if sent.tries > 1 and len(others) >= sent.tries:
            self._add("doubled", delivery, f"under {len(others) + 1} ids, and sent {sent.tries} times")

    def _is_kept(self, jump: Jump) -> bool:
        """Whether a move has to keep the due order: there was room all the time, and the same consumers, so
        that nothing was given back by one that left.
        """
        asked_ms, done_ms = jump.asked_ms, jump.done_ms
        own = [one for one in self._history.sessions if one.subscription == self._place]
        gone = (at_ms for one in own for at_ms in (one.left_ms, one.ended_ms))
        # Where it is known what consumers asked for, the broker is not believed that they asked for no more:
        # one that moves its clock too fast says so, too.
        is_believed = any(not one.queue for one in own)
        return not (
            (jump.has_waiting and is_believed)
            or any(asked_ms - IN_FLIGHT_MS <= at_ms <= done_ms for at_ms in gone)
            or any(asked_ms - JOINED_WITHIN_MS <= one.began_ms <= done_ms for one in own)
        )

    # -- times -----------------------------------------------------------------------------------------------

    def _check_early(self, sent: Sent, delivery: Received) -> None:
        if not sent.delay_ms or not self._is_delaying:
            return
        due_ms = self._time.at_least_ms(sent.first_ms) + sent.delay_ms
        early_ms = due_ms - self._time.at_most_ms(delivery.at_ms)
        if early_ms > self._expect.early_by:
            self._add("early", delivery, f"{early_ms} ms before it was due")
            self.early_by_ms = max(self.early_by_ms, early_ms)

    def _check_turn(self, sent: Sent, delivery: Received) -> None:
        """What a move makes due comes in due order, as far as one connection can tell."""
        if not (sent.delay_ms and sent.receipt_ms and self._is_delaying) or delivery.redeliveries:
            return
        number = bisect_right(self._asked, delivery.at_ms) - 1
        if number < 0 or not self._keeps_turns[number]:
            return
        jump = self._history.jumps[number]
        if delivery.at_ms > jump.done_ms or (number, delivery.session) in self._full:
            return
        least_ms = self._time.at_least_ms(sent.first_ms) + sent.delay_ms
        most_ms = self._time.at_most_ms(sent.receipt_ms) + sent.delay_ms
        if least_ms <= jump.from_ms or most_ms > jump.to_ms:
            return
        step_ms = (jump.to_ms - jump.from_ms) // STEPS_OF_A_MOVE + 1
        before_ms = self._due.get((number, delivery.session), 0)
        if before_ms - step_ms > most_ms:
            self._add("out_of_turn", delivery, f"{before_ms - most_ms} ms after its turn")
        self._due[number, delivery.session] = max(before_ms, least_ms)

    # -- order -----------------------------------------------------------------------------------------------

    def _check_order(self, sent: Sent, delivery: Received) -> None:
        # Delayed messages come when they are due, not in their turn.
        if self._is_ordered:
            stream = (sent.producer, "")
        elif self._by_key and sent.key and not sent.delay_ms:
            stream = (sent.producer, sent.key)
        else:
            return
        before = self._latest.get(stream, -1)
        if sent.number < before and not sent.is_refused:
            self._add("out_of_order", delivery, f"after number {before}")
        self._latest[stream] = max(before, sent.number)

    def _check_session_order(self, delivery: Received) -> None:
        """One consumer that gets everything gets it in the order of the topic."""
        before = self._before.get(delivery.session)
        self._before[delivery.session] = delivery
        if before is None or delivery.id > before.id:
            return
        turns = self._history.sessions[delivery.session].passive_ms
        if not any(before.at_ms <= at_ms <= delivery.at_ms for at_ms in turns):
            self._add("out_of_order", delivery, f"after {_place(before)} on the same connection")

    def _check_key(self, delivery: Received) -> None:
        """A key's messages are at one consumer at a time, of each partition."""
        at_ms, key = delivery.at_ms, (delivery.partition, delivery.key)
        held = [one for one in self._at_key.get(key, ()) if self._released_ms(one, acked=True) > at_ms]
        self._at_key[key] = held
        if self._over_ms(delivery) <= at_ms:
            return  # it was given back before it arrived
        other = next((one for one in held if one.session != delivery.session), None)
        if other is not None:
            self._add(
                "two_at_a_key", delivery, f"{delivery.key}, while {_place(other)} was with another consumer"
            )
        held.append(delivery)

    def _check_key_order(self, same_id: list[Received], delivery: Received) -> None:
        """What comes again of a key comes before what is newer of it, to a consumer that has had neither."""
        if any(one.session == delivery.session for one in same_id):
            return
        key = delivery.session, delivery.key
        newest = self._newest.get(key)
        # What came for the first time has its place among those of its producer: `_check_order`.
        if newest is not None and delivery.id < newest.id and same_id:
            self._add("out_of_order", delivery, f"again, after {_place(newest)} of its key")
        if newest is None or delivery.id > newest.id:
            self._newest[key] = delivery

    def _check_room(self, delivery: Received) -> None:
        """A consumer gets no more than it asked for."""
        queue = self._history.sessions[delivery.session].queue
        if not queue:
            return
        self._note_full(queue, delivery)
        settles = self._settles.setdefault(delivery.session, [])
        while settles and settles[0] <= delivery.at_ms:
            heappop(settles)
        if len(settles) >= queue:
            self._add("unasked", delivery, f"{len(settles)} unsettled were there, {queue} asked for")
        heappush(settles, delivery.ack_ms or delivery.nack_ms or NEVER_MS)

    def _note_full(self, queue: int, delivery: Received) -> None:
        """A move does not wait for a consumer without room, and what waits then comes in the order of the
        topic. What the consumer has asked for since the move was may still be on its way to the broker.
        """
        if not self._asked:
            return
        number = bisect_right(self._asked, delivery.at_ms) - 1
        heard_ms = delivery.at_ms - self._machine.stretched_ms(END_HEARD_MS, delivery.at_ms)
        if number >= 0:
            heard_ms = max(heard_ms, self._asked[number])
        unheard = self._unheard.setdefault(delivery.session, [])
        while unheard and unheard[0] <= heard_ms:
            heappop(unheard)
        heappush(unheard, delivery.ack_ms or delivery.nack_ms or NEVER_MS)
        if len(unheard) >= queue:
            self._full.add((number, delivery.session))

    # -- again -----------------------------------------------------------------------------------------------

    def _check_again(self, before: list[Received], delivery: Received) -> None:
        self.again += 1
        known = (one for one in before if 0 < one.acked_ms <= delivery.at_ms)
        acked = max(known, key=lambda one: one.acked_ms, default=None)
        held = next((one for one in before if not self._is_given_up(one, delivery)), None)
        # To a consumer that had gone when it arrived, while another one had it already.
        is_stray = self._over_ms(delivery) <= delivery.at_ms
        if acked is not None:
            if any(self._may_forget(one, acked, delivery) for one in self._forgets):
                self.again_after_crash += 1
                # Once: what came of it since then is at its consumer as anything else is.
                before = [one for one in before if not 0 < one.acked_ms <= delivery.at_ms]
                held = next((one for one in before if not self._is_given_up(one, delivery)), None)
                self._check_held(held, delivery, is_stray=is_stray)
                return
            # Sent before the broker heard of the acknowledgement, so to a consumer that was there.
            began_ms = self._history.sessions[delivery.session].began_ms
            is_elsewhere = acked.session != delivery.session and began_ms <= acked.acked_ms
            is_elsewhere = is_elsewhere and (held is None or is_stray)
            after_ms = delivery.at_ms - acked.acked_ms
            if not (is_elsewhere and after_ms <= self._machine.stretched_ms(IN_FLIGHT_MS, delivery.at_ms)):
                self._add("doubled", delivery, f"{after_ms} ms after its acknowledgement was confirmed")
        else:
            self._check_held(held, delivery, is_stray=is_stray)

    def _check_held(self, held: Received | None, delivery: Received, *, is_stray: bool) -> None:
        if held is not None and not (is_stray and held.session != delivery.session):
            whom = "the same consumer" if held.session == delivery.session else "another consumer"
            self._add("uncaused", delivery, f"while {whom} had it")

    def _is_given_up(self, before: Received, delivery: Received) -> bool:
        """Whether a message that a consumer had may come again, to this one."""
        if before.session != delivery.session:
            return self._released_ms(before) <= delivery.at_ms
        # One connection is in order: its end has no part in what came before it.
        turns = self._history.sessions[before.session].passive_ms
        is_nacked = 0 < before.nack_ms <= delivery.at_ms
        return is_nacked or any(before.at_ms <= at_ms <= delivery.at_ms for at_ms in turns)

    def _may_forget(self, forgetting: Forgetting, acked: Received, delivery: Received) -> bool:
        from_ms, to_ms, reach_ms = forgetting
        if not acked.acked_ms <= to_ms or delivery.at_ms < from_ms:
            return False
        waits_ms = self._machine.waits_ms(acked.acked_ms, from_ms)
        return acked.acked_ms >= from_ms - reach_ms - waits_ms

    def _check_count(self, before: list[Received], delivery: Received) -> None:
        nacked = [one for one in before if 0 < one.nack_ms <= delivery.at_ms]
        if delivery.redeliveries > len(nacked):
            text = f"{delivery.redeliveries}, after {len(nacked)} negative acknowledgements"
            self._add("miscounted", delivery, text)
        elif nacked and before[-1] is nacked[-1]:
            # The count starts over with a new first consumer: not while these two were there. What was on its
            # way to one that had gone was sent before it went to the one that asked for it again.
            last = nacked[-1]
            both_stayed = (
                self._history.sessions[delivery.session].began_ms <= last.nack_ms
                and min(self._over_ms(last), self._over_ms(delivery)) > delivery.at_ms
            )
            if both_stayed and delivery.redeliveries <= last.redeliveries:
                self._add(
                    "miscounted", delivery, f"{delivery.redeliveries}, as before it was asked for again"
                )

    def _released_ms(self, delivery: Received, *, acked: bool = False) -> int:
        """From when on the broker may give it to another consumer (`acked`: others of its key)."""
        moments = [delivery.nack_ms or NEVER_MS, self._over_ms(delivery)]
        if acked:
            moments.append(delivery.ack_ms or NEVER_MS)
        return min(moments)

    def _over_ms(self, delivery: Received) -> int:
        """From when on its consumer may be gone for the broker, or passive."""
        session = self._history.sessions[delivery.session]
        passive_ms = next((at_ms for at_ms in session.passive_ms if at_ms >= delivery.at_ms), NEVER_MS)
        return min(session_over_ms(session, self._machine), began_ms(passive_ms, self._machine))

    def _add(self, name: str, delivery: Received, why: str = "") -> None:
        topic, subscription = self._subscription.topic, self._subscription.name
        text = f"topic {topic}, {subscription}: producer {delivery.producer} number {delivery.number}"
        place = f"{_place(delivery)} at {self._history.second(delivery.at_ms)}"
        self._found.add(name, f"{text} in {place}{': ' if why else ''}{why}")


def session_over_ms(session: Session, machine: Machine) -> int:
    """From when on its consumer may be gone for the broker."""
    return session.left_ms or began_ms(session.ended_ms or NEVER_MS, machine)


def began_ms(heard_ms: int, machine: Machine) -> int:
    """From when on an end may have been on its way that was heard then."""
    return NEVER_MS if heard_ms == NEVER_MS else heard_ms - machine.stretched_ms(END_HEARD_MS, heard_ms)


def _place(delivery: Received) -> str:
    return f"{delivery.ledger_id}:{delivery.entry_id}"
