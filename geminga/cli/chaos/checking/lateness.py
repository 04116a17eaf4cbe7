"""How late messages came, against their due times or their receipts. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from geminga.cli.chaos.checking.broker_time import BrokerTime
from geminga.cli.chaos.checking.deliveries import DELAYING
from geminga.cli.chaos.checking.history import History


class First(NamedTuple):
    """The first delivery of a confirmed message to a subscription that delays messages, or of one without a
    delay to any.
    """

    at_ms: int
    late_ms: int
    is_delayed: bool


def firsts(history: History) -> Iterator[First]:
    """Of all subscriptions, one after the other."""
    time = BrokerTime(history.offset_ms, history.jumps)
    for subscription, deliveries in history.subscriptions:
        seen: set[tuple[int, int]] = set()
        for delivery in deliveries:
            name = delivery.producer, delivery.number
            if name in seen:
                continue
            seen.add(name)
            sent = history.sent_as(*name)
            if sent is None or not sent.receipt_ms:
                continue
            if not sent.delay_ms:
                yield First(delivery.at_ms, max(0, delivery.at_ms - sent.receipt_ms), False)
            elif subscription.type in DELAYING:
                # From the receipt on: when the entry was stamped in between is not known, and a producer may
                # have sent it several times.
                due_ms = time.at_most_ms(sent.receipt_ms) + sent.delay_ms
                yield First(delivery.at_ms, max(0, delivery.at_ms - time.wall_ms(due_ms)), True)


def shares(times_ms: Sequence[int]) -> list[int]:
    """Median, 99 of 100, the largest; empty if there is none."""
    ordered = sorted(times_ms)
    return [ordered[round((len(ordered) - 1) * share)] for share in (0.5, 0.99, 1.0)] if ordered else []
