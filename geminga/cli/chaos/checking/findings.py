"""What a check has found, and in which words: wrong, late, not shown, passed. Pure."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from geminga.cli.chaos.checking.scenario import Expect

EXAMPLES_MAX: Final = 5
Verdict = Literal["passed", "wrong", "late", "not shown"]
WRONG: Final = {
    "lost": "receipted, and never acknowledged by the end",
    "doubled": "came after their acknowledgement was confirmed",
    "uncaused": "came again, and nothing had asked for that",
    "unasked": "came although their consumer had as many as it had asked for",
    "out_of_order": "came in another order",
    "two_at_a_key": "of a key that another consumer still held",
    "out_of_turn": "came before others that a move of the clock had made due earlier",
    "early": "came before they were due",
    "damaged": "other payloads, keys, properties or ids than were sent",
    "unknown": "never sent to that topic",
    "miscounted": "redelivery counts that do not fit",
    "unanswered": "sent or acknowledged, and never answered",
    "left_behind": "counts of the broker that are not what the history says",
    "clock": "moves of the clock that did not begin or end where they had to",
    "stored_twice": "sent again for want of a receipt, and stored twice",
}
"""Findings that make a run wrong, each more often than the scenario expects."""


def advice(times: int = 3) -> str:
    """What may help where the machine had no time. With `--slack` already given, its factor grows by this."""
    return f"run it where less else runs, or with bounds {times:,} times as long (--slack)"


class Examples(msgspec.Struct):
    """How many there were, and the first of them."""

    count: int = 0
    texts: list[str] = []

    def add(self, text: str, count: int = 1) -> None:
        self.count += count
        if len(self.texts) < EXAMPLES_MAX:
            self.texts = [*self.texts, text]


class Findings(msgspec.Struct):
    sent: int = 0
    confirmed: int = 0
    """Sent, with a receipt."""
    deliveries: int = 0
    counts: dict[str, Examples] = msgspec.field(default_factory=lambda: {name: Examples() for name in WRONG})
    """By the names of `WRONG`."""
    again: int = 0
    """Deliveries of a message that a subscription had before, each with a cause."""
    again_after_crash: int = 0
    """Of those: acknowledged and confirmed before a crash, a fence or a seek."""
    unconfirmed: int = 0
    """Messages of a subscription that were acknowledged, and no answer came before the consumer had gone."""
    taken: int = 0
    """Messages of a subscription that were confirmed after a copy, and have gone when it was put in place,
    whether acknowledged before or not: no loss.
    """
    late_ms: list[int] = []
    """How late delayed messages were: median, 99 of 100, the latest. Empty: there were none."""
    late_shown_ms: list[int] = []
    """The same without what the machine may have held up."""
    prompt_ms: list[int] = []
    """How long after their receipts messages without a delay were delivered first, as `late_ms`."""
    prompt_shown_ms: list[int] = []
    receipt_ms: list[int] = []
    """How long after they were sent first the receipts of messages came, as `late_ms`."""
    receipt_shown_ms: list[int] = []
    early_by_ms: int = 0
    """The earliest."""
    timer_late_ms: int = 0
    """How late a timer of the run's own fired at worst."""
    machine_waits_ms: int = 0
    """How long client and broker waited for the machine in all."""
    ended: list[str] = []
    """What is said of each time that the broker ended by itself."""
    dead: list[str] = []
    """Why the broker does not run any more."""
    stuck: list[str] = []
    """What nothing was seen of any more, while the machine had time."""
    not_shown: list[str] = []
    """What the run could not tell."""
    notes: list[str] = []
    """What a reader may overlook; no verdict depends on them."""

    def add(self, name: str, text: str, count: int = 1) -> None:
        self.counts[name].add(text, count)

    def wrong(self, expect: Expect) -> list[str]:
        """What breaks a promise."""
        found = [
            f"{name.replace('_', ' ')}: {examples.count:,}, expected {bound} at most ({WRONG[name]})"
            for name, examples in self.counts.items()
            if (bound := getattr(expect, name)) is not None and examples.count > bound
        ]
        if not expect.broker_ends:
            found += [f"the broker ended by itself: {text}" for text in self.ended]
        return found + self.dead + self.stuck

    def late(self, expect: Expect) -> list[str]:
        """What came too late, whatever the machine did meanwhile."""
        return [
            f"{text} {shown_ms:,} ms late, without what the machine held up; expected {bound_ms:,} ms at most"
            for text, _, shown_ms, bound_ms in self._bounds(expect)
            if shown_ms > bound_ms
        ]

    def untold(self, expect: Expect) -> list[str]:
        """What the run could not tell: client or machine were too slow, or a part of it was missing."""
        return self.not_shown + [
            f"{text} {late_ms:,} ms late, expected {bound_ms:,} ms at most; the machine may have held up "
            f"{late_ms - shown_ms:,} ms of that; {_advice_for(late_ms, bound_ms)}"
            for text, late_ms, shown_ms, bound_ms in self._bounds(expect)
            if shown_ms <= bound_ms < late_ms
        ]

    def _bounds(self, expect: Expect) -> list[tuple[str, int, int, int]]:
        """Of what the scenario bounds: a text, how late it was, how late that was shown to be, and the
        bound.
        """
        rows = (
            ("99 of 100 delayed messages were", self.late_ms, self.late_shown_ms, 1, expect.p99),
            ("the latest delayed message was", self.late_ms, self.late_shown_ms, 2, expect.late),
            (
                "99 of 100 messages without a delay were",
                self.prompt_ms,
                self.prompt_shown_ms,
                1,
                expect.prompt,
            ),
            ("99 of 100 receipts were", self.receipt_ms, self.receipt_shown_ms, 1, expect.receipt),
        )
        return [
            (text, all_ms[index], shown_ms[index], bound_ms)
            for text, all_ms, shown_ms, index, bound_ms in rows
            if bound_ms is not None and all_ms
        ]

    def verdict(self, expect: Expect) -> Verdict:
        """The gravest that applies."""
        if self.wrong(expect):
            return "wrong"
        if self.late(expect):
            return "late"
        return "not shown" if self.untold(expect) else "passed"


def _advice_for(late_ms: int, bound_ms: int) -> str:
    """The next run is not late by exactly as much: half of it more."""
    if not bound_ms:
        return "a bound of 0 ms is kept by no machine that has other work"
    return advice(max(3, -(-late_ms * 3 // (bound_ms * 2))))
