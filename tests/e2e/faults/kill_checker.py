"""Judges what clients saw of a topic whose broker was killed again and again: lists in, violations out."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

Place = tuple[int, int, int]
"""(ledger, entry, batch index): where a message is, or -1 as index of one that is not in a batch."""
BODY_BYTES = 200
EXAMPLES_MAX = 5


@dataclass(frozen=True, slots=True)
class Seen:
    """A message at a place: in a receipt, in a delivery, or in the topic as read at the end."""

    place: Place
    producer: str
    number: int


def body_of(producer: str, number: int, size_bytes: int = BODY_BYTES) -> bytes:
    """The bytes that this producer sends as its n-th message; no two are alike, and every byte is checked."""
    head = f"{producer}:{number}:".encode()
    filler = zlib.crc32(head).to_bytes(4, "big") * (size_bytes // 4 + 1)
    return head + filler[: size_bytes - len(head)]


def parse_body(body: bytes) -> tuple[str, int]:
    """Producer and number of a body; AssertionError when any byte is not as it was sent."""
    producer, number, _ = body.split(b":", 2)
    assert body == body_of(producer.decode(), int(number), len(body)), f"altered bytes: {body[:80]!r}"
    return producer.decode(), int(number)


@dataclass
class Verdict:
    """What was counted, and what was wrong; `violations` names kinds with the first few examples of each."""

    receipted: int = 0
    stored: int = 0
    stored_twice: int = 0
    delivered: int = 0
    delivered_again: int = 0
    violations: dict[str, list[str]] = field(default_factory=dict)
    violation_counts: dict[str, int] = field(default_factory=dict)

    def blame(self, kind: str, example: str) -> None:
        self.violation_counts[kind] = self.violation_counts.get(kind, 0) + 1
        examples = self.violations.setdefault(kind, [])
        if len(examples) < EXAMPLES_MAX:
            examples.append(example)


def check(
    receipts: Sequence[Seen], stored: Sequence[Seen], deliveries: Sequence[Seen], *, in_order: bool
) -> Verdict:
    """Judge one topic of which nothing was trimmed.

    `receipts`: what producers were promised. `stored`: the whole topic, read in order after the last kill.
    `deliveries`: what one subscription got over the whole time, in order of arrival; `in_order` says that it
    had one consumer at a time, so that first deliveries must keep each producer's order.
    """
    verdict = Verdict(receipted=len(receipts), stored=len(stored), delivered=len(deliveries))
    _check_places(verdict, receipts, stored, deliveries)
    _check_promises(verdict, receipts, stored, deliveries)
    verdict.stored_twice = _check_order(verdict, "stored", stored, in_order=True)
    verdict.delivered_again = _check_order(verdict, "delivered", deliveries, in_order=in_order)
    return verdict


def _check_places(verdict: Verdict, *observations: Iterable[Seen]) -> None:
    """An id belongs to one message for ever, whoever saw it and before or after whichever crash."""
    owners: dict[Place, Seen] = {}
    for seen in (seen for sequence in observations for seen in sequence):
        owner = owners.setdefault(seen.place, seen)
        if (owner.producer, owner.number) != (seen.producer, seen.number):
            verdict.blame(
                "id reused",
                f"{seen.place}: {owner}, then {seen}",
            )


def _check_promises(
    verdict: Verdict, receipts: Sequence[Seen], stored: Sequence[Seen], deliveries: Sequence[Seen]
) -> None:
    stored_places = {seen.place for seen in stored}
    delivered_messages = {(seen.producer, seen.number) for seen in deliveries}
    for seen in receipts:
        if seen.place not in stored_places:
            verdict.blame("receipted message lost", f"{seen.producer}:{seen.number} at {seen.place}")
        if (seen.producer, seen.number) not in delivered_messages:
            verdict.blame(
                "receipted message never delivered", f"{seen.producer}:{seen.number} at {seen.place}"
            )
    for seen in deliveries:
        if seen.place not in stored_places:
            verdict.blame("delivered message disappeared", f"{seen.producer}:{seen.number} at {seen.place}")
    places = [seen.place for seen in stored]
    if places != sorted(set(places)):
        verdict.blame("ids do not grow", "the topic was not read in the order of its ids")


def _check_order(verdict: Verdict, what: str, sequence: Sequence[Seen], *, in_order: bool) -> int:
    """First occurrences of each producer's messages count 0, 1, 2, ...; returns how many came again."""
    expected: dict[str, int] = {}
    known: set[tuple[str, int]] = set()
    for seen in sequence:
        message = seen.producer, seen.number
        if message in known:
            continue
        known.add(message)
        awaited = expected.get(seen.producer, 0)
        if in_order and seen.number != awaited:
            verdict.blame(f"order broken as {what}", f"{seen.producer}:{seen.number} before {awaited}")
        expected[seen.producer] = max(awaited, seen.number + 1)
    for producer, count in expected.items():
        missing = [number for number in range(count) if (producer, number) not in known]
        if missing:
            verdict.blame(
                f"gap in what was {what}", f"{producer}: {len(missing)} missing, first {missing[0]}"
            )
    return len(sequence) - len(known)
