"""Compares what was sent with what came: lost, doubled, out of order, early, late, damaged. Pure.

Delivery is at least once: a message may come again until its acknowledgement is confirmed, and, where the
broker has crashed or a subscription was set back since, after that. A producer that got no receipt
sends again, so that a message may be stored twice. Those are counted and are no failures; everything else is.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Final

import msgspec

from geminga.cli.chaos.checking.broker_time import BrokerTime
from geminga.cli.chaos.checking.history import History, MessageId, Received, Receiving, Sent
from geminga.cli.chaos.checking.scenario import Expect

EXAMPLES_MAX: Final = 5
ORDERED: Final = frozenset({"Exclusive", "Failover"})
IN_FLIGHT_MS: Final = 5000
"""So long a delivery may be on its way: sent before another consumer acknowledged the message, and received
after that. Two connections are in no order.
"""
DELAYING: Final = frozenset({"Shared", "Key_Shared"})
"""Types of subscriptions to which the broker delays messages."""


class Examples(msgspec.Struct):
    """How many there were, and the first of them."""

    count: int = 0
    texts: list[str] = []

    def add(self, text: str) -> None:
        self.count += 1
        if len(self.texts) < EXAMPLES_MAX:
            self.texts = [*self.texts, text]


class Findings(msgspec.Struct):
    sent: int = 0
    confirmed: int = 0
    """Sent, with a receipt."""
    deliveries: int = 0
    lost: Examples = msgspec.field(default_factory=Examples)
    """Confirmed, and never delivered to a subscription, or not again after it was set back."""
    doubled: Examples = msgspec.field(default_factory=Examples)
    """Delivered again after their acknowledgement was confirmed, without a crash or a seek in between."""
    out_of_order: Examples = msgspec.field(default_factory=Examples)
    """Delivered first after a later message of the same producer (of the same key, for Key_Shared)."""
    early: Examples = msgspec.field(default_factory=Examples)
    """Delivered before they were due."""
    damaged: Examples = msgspec.field(default_factory=Examples)
    """Other bytes than were sent."""
    unknown: Examples = msgspec.field(default_factory=Examples)
    """Delivered, and never sent to that topic."""
    again: int = 0
    """Deliveries of a message that a subscription had before, each allowed."""
    again_after_crash: int = 0
    """Of those: acknowledged and confirmed before a crash or a seek."""
    stored_twice: int = 0
    """Messages that came under two ids, since their producer got no receipt and sent them again."""
    late_ms: list[int] = []
    """How late delayed messages were: median, 99 of 100, the latest. Empty: there were none."""
    prompt_ms: list[int] = []
    """How long after their receipts messages without a delay were delivered first, as `late_ms`."""
    early_by_ms: int = 0
    """The earliest."""
    ended: list[str] = []
    """What is said of each time that the broker ended by itself."""
    unfinished: list[str] = []

    def failures(self, expect: Expect) -> list[str]:
        """What is other than expected; empty: the run has passed."""
        found = [
            f"{name.replace('_', ' ')}: {count}, expected {getattr(expect, name)} at most"
            for name in ("lost", "doubled", "out_of_order", "early", "damaged", "unknown")
            if (count := getattr(self, name).count) > getattr(expect, name)
        ]
        for index, bound_ms, text in ((1, expect.p99, "99 of 100 are"), (2, expect.late, "the latest is")):
            if bound_ms is not None and self.late_ms and self.late_ms[index] > bound_ms:
                found.append(f"late: {text} {self.late_ms[index]} ms late, expected {bound_ms} ms at most")
        if expect.prompt is not None and self.prompt_ms and self.prompt_ms[1] > expect.prompt:
            found.append(
                f"prompt: 99 of 100 messages without a delay came after {self.prompt_ms[1]} ms, expected "
                f"{expect.prompt} ms at most"
            )
        if self.ended and not expect.broker_ends:
            found += [f"the broker ended by itself: {text}" for text in self.ended]
        return found + self.unfinished


def check(history: History, expect: Expect) -> Findings:
    """All findings of one run."""
    found = Findings(ended=[d.text for d in history.doings if d.kind == "ended"])
    found.unfinished = list(history.unfinished)
    for sent in history.sent:
        found.sent += sum(1 for one in sent if one.first_ms)
        found.confirmed += sum(1 for one in sent if one.receipt_ms)
    checker = _Checker(history, expect, found)
    for subscription in history.subscriptions:
        checker.check(subscription)
    found.late_ms = _shares(checker.late_ms)
    found.prompt_ms = _shares(checker.prompt_ms)
    return found


def _shares(times_ms: list[int]) -> list[int]:
    """Median, 99 of 100, the largest; empty if there is none."""
    ordered = sorted(times_ms)
    return [ordered[round((len(ordered) - 1) * share)] for share in (0.5, 0.99, 1.0)] if ordered else []


def lateness(history: History) -> Iterator[tuple[int, int]]:
    """(moment of the delivery, ms late) of the first delivery of each delayed message."""
    time = BrokerTime(history.offset_ms, history.jumps)
    for subscription in history.subscriptions:
        if subscription.type not in DELAYING:
            continue
        seen: set[tuple[int, int]] = set()
        for delivery in subscription.deliveries:
            name = delivery.producer, delivery.number
            sent = history.sent_as(*name)
            if sent is not None and name not in seen:
                seen.add(name)
                if sent.delay_ms and sent.receipt_ms:
                    yield delivery.at_ms, _late_ms(time, sent, delivery)


def _late_ms(time: BrokerTime, sent: Sent, delivery: Received) -> int:
    # From the receipt on: when the entry was stamped in between is not known, and a producer may have sent
    # it several times.
    due_ms = time.at_most_ms(sent.receipt_ms) + sent.delay_ms
    return max(0, delivery.at_ms - time.wall_ms(due_ms))


class _Checker:
    def __init__(self, history: History, expect: Expect, found: Findings) -> None:
        self._history = history
        self._expect = expect
        self._found = found
        self._time = BrokerTime(history.offset_ms, history.jumps)
        crashes = (d.at_ms for d in history.doings if d.kind in {"crash", "seek", "ended"})
        self._forgets = [*((at_ms, at_ms) for at_ms in crashes), *history.fencings]
        """When acknowledgements may be forgotten: from, to."""
        self.prompt_ms: list[int] = []
        self.late_ms = [late_ms for _, late_ms in lateness(history)]

    def check(self, subscription: Receiving) -> None:
        """What one subscription got."""
        ids: dict[tuple[int, int], set[MessageId]] = {}
        acked: dict[MessageId, Received] = {}
        latest: dict[tuple[int, ...], int] = {}
        came: set[tuple[int, int]] = set()
        for delivery in subscription.deliveries:
            self._found.deliveries += 1
            text = _text(subscription, delivery)
            if not delivery.is_whole:
                self._found.damaged.add(text)
                continue
            name = delivery.producer, delivery.number
            sent = self._history.sent_as(*name)
            if sent is None or self._history.producers[sent.producer].topic != subscription.topic:
                self._found.unknown.add(text)
                continue
            self._check_early(subscription, sent, delivery, text)
            if name not in ids:
                ids[name] = {delivery.id}
                if not sent.delay_ms and sent.receipt_ms:
                    self.prompt_ms.append(max(0, delivery.at_ms - sent.receipt_ms))
                self._check_order(subscription, sent, latest, text)
            else:
                self._check_again(ids[name], acked.get(delivery.id), sent, delivery, text)
            if self._history.is_after_seeks(delivery):
                came.add(name)
            if delivery.acked_ms:
                acked[delivery.id] = delivery
        self._check_lost(subscription, came, ids)

    def _check_early(self, subscription: Receiving, sent: Sent, delivery: Received, text: str) -> None:
        if not sent.delay_ms or subscription.type not in DELAYING:
            return
        due_ms = self._time.at_least_ms(sent.first_ms) + sent.delay_ms
        early_ms = due_ms - self._time.at_most_ms(delivery.at_ms)
        if early_ms > self._expect.early_by:
            self._found.early.add(f"{text}: {early_ms} ms before it was due")
            self._found.early_by_ms = max(self._found.early_by_ms, early_ms)

    def _check_order(
        self, subscription: Receiving, sent: Sent, latest: dict[tuple[int, ...], int], text: str
    ) -> None:
        # Delayed messages come when they are due, not in their turn.
        if subscription.type in ORDERED:
            stream: tuple[int, ...] = (sent.producer,)
        elif subscription.type == "Key_Shared" and sent.key >= 0 and not sent.delay_ms:
            stream = (sent.producer, sent.key)
        else:
            return
        before = latest.get(stream, -1)
        if sent.number < before:
            self._found.out_of_order.add(f"{text}: after number {before}")
        latest[stream] = max(before, sent.number)

    def _check_again(
        self, ids: set[MessageId], acked: Received | None, sent: Sent, delivery: Received, text: str
    ) -> None:
        if delivery.id not in ids:
            ids.add(delivery.id)
            if sent.tries > 1:
                self._found.stored_twice += 1
            else:
                self._found.doubled.add(f"{text}: also under another id, and sent once")
            return
        if acked is None or acked.acked_ms > delivery.at_ms:
            self._found.again += 1
        elif self._may_be_forgotten(acked.acked_ms, delivery.at_ms):
            self._found.again += 1
            self._found.again_after_crash += 1
        elif _was_in_flight(acked, delivery):
            self._found.again += 1
        else:
            after_ms = delivery.at_ms - acked.acked_ms
            self._found.doubled.add(f"{text}: {after_ms} ms after its acknowledgement was confirmed")

    def _may_be_forgotten(self, acked_ms: int, at_ms: int) -> bool:
        return any(acked_ms <= to_ms and from_ms <= at_ms for from_ms, to_ms in self._forgets)

    def _check_lost(
        self, subscription: Receiving, came: Container[tuple[int, int]], ever: Container[tuple[int, int]]
    ) -> None:
        for producer, sent in zip(self._history.producers, self._history.sent, strict=True):
            if producer.topic != subscription.topic:
                continue
            for one in sent:
                name = one.producer, one.number
                if one.receipt_ms and name not in came:
                    when = ", not again after a seek" if name in ever else ""
                    delay = f", delayed by {one.delay_ms} ms" if one.delay_ms else ""
                    self._found.lost.add(
                        f"topic {subscription.topic}, {subscription.subscription}: "
                        f"{producer.name} number {one.number}{delay}{when}"
                    )


def _was_in_flight(acked: Received, delivery: Received) -> bool:
    """Whether the broker may have sent it before it heard of the acknowledgement."""
    is_on_another = delivery.session != acked.session and delivery.session.began_ms <= acked.acked_ms
    return is_on_another and delivery.at_ms - acked.acked_ms <= IN_FLIGHT_MS


def _text(subscription: Receiving, delivery: Received) -> str:
    return (
        f"topic {subscription.topic}, {subscription.subscription}: producer {delivery.producer} "
        f"number {delivery.number} in {':'.join(map(str, delivery.id[1:3]))}"
    )
