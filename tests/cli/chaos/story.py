"""A history written by hand, for the checker and its reports."""

from __future__ import annotations

from typing import Any

from geminga.cli.chaos.checking.check import check
from geminga.cli.chaos.checking.findings import WRONG, Findings
from geminga.cli.chaos.checking.history import (
    Doing,
    History,
    Probe,
    Producing,
    Received,
    Receiving,
    Sent,
    Session,
    Subscription,
)
from geminga.cli.chaos.checking.scenario import Duration, Expect

BEGAN_MS = 1_800_000_000_000


class Story:
    """One producer, one subscription with two consumers that stay; times in ms after the beginning."""

    def __init__(self, kind: Any = "Shared", messages: int = 10, *, delay_ms: int = 0, keys: int = 0) -> None:
        self.history = History(BEGAN_MS, ended_ms=BEGAN_MS + 60_000, is_drained=True)
        self.history.producers.append(Producing(topic=0, name="p0"))
        sent = []
        for number in range(messages):
            key = f"k{number % keys}" if keys else ""
            one = Sent(producer=0, number=number, key=key, trace=f"t{number}", delay_ms=delay_ms)
            one.send(BEGAN_MS + 10 * number, 100 + number)
            one.confirm(BEGAN_MS + 10 * number + 5, 7, number)
            sent.append(one)
        self.history.sent.append(sent)
        self.subscribe(kind)
        self.got = self.history.subscriptions[0].deliveries
        for _ in range(2):
            self.join(0)

    def subscribe(self, kind: Any, topic: int = 0, deliveries: list[Received] | None = None) -> None:
        subscription = Subscription(topic=topic, name="s", type=kind)
        self.history.subscriptions.append(Receiving(subscription, deliveries or []))

    def join(self, at_ms: int) -> Session:
        """A consumer more."""
        return self.history.session(0, "c", BEGAN_MS + at_ms)

    def deliver(
        self, number: int, at_ms: int = 1000, *, acked_ms: int | None = None, session: int = 0, **fields: Any
    ) -> Received:
        """Acknowledged a millisecond later, or then; 0: not."""
        one = Received(
            **{
                "session": session,
                "producer": 0,
                "number": number,
                "key": self.history.sent[0][number].key if number < len(self.history.sent[0]) else "",
                "trace": f"t{number}",
                "crc": 100 + number,
                "at_ms": BEGAN_MS + at_ms,
                "ledger_id": 7,
                "entry_id": number,
                **fields,
            }
        )
        if acked_ms != 0:
            one.acknowledge(one.at_ms)
            one.confirm(BEGAN_MS + (at_ms + 1 if acked_ms is None else acked_ms))
        self.got.append(one)
        return one

    def deliver_all(self, at_ms: int = 1000) -> None:
        for number in range(len(self.history.sent[0])):
            self.deliver(number, at_ms + number)

    def do(self, at_ms: int, text: str, kind: Any = "step") -> None:
        self.history.doings.append(Doing(at_ms=BEGAN_MS + at_ms, text=text, kind=kind))

    def crash(self, at_ms: int) -> None:
        """And everybody comes back 100 ms later, under the next two numbers of sessions."""
        self.do(at_ms, "kill", "crash")
        self.do(at_ms + 100, "started again", "started")
        for session in self.history.sessions:
            session.end(BEGAN_MS + at_ms + 1)
        self.join(at_ms + 100)
        self.join(at_ms + 100)

    def probe(self, at_ms: int, **waits_ms: float) -> None:
        self.history.probes.append(Probe(at_ms=BEGAN_MS + at_ms, **waits_ms))

    def check(self, **expect: int) -> Findings:
        return check(self.history, Expect(**{name: Duration(value) for name, value in expect.items()}))  # type: ignore[arg-type]

    def finds(self, **wanted: int) -> Findings:
        """These counts, and nothing else."""
        found = self.check()
        assert {name: one.count for name, one in found.counts.items() if one.count} == wanted
        assert set(wanted) <= set(WRONG)
        is_wrong = bool(wanted.keys() - {"stored_twice"})
        assert found.verdict(Expect()) == ("wrong" if is_wrong else "passed")
        return found
