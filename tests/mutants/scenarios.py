"""Bugs of the checker of `geminga chaos run`."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

CHECK = "geminga/cli/chaos/checking/check.py"
TIME = "geminga/cli/chaos/checking/broker_time.py"
TESTS = ("tests/cli/chaos/test_check.py",)

MUTANTS = (
    Mutant(
        "losses-of-one-subscription-overlooked",
        CHECK,
        "if one.receipt_ms and name not in came:",
        "if one.receipt_ms and not ever:",
        TESTS,
        "that each message is looked for",
    ),
    Mutant(
        "crashes-excuse-what-came-before-them",
        CHECK,
        "any(acked_ms <= to_ms and from_ms <= at_ms for from_ms, to_ms in self._forgets)",
        "bool(self._forgets)",
        TESTS,
        "that a crash excuses only acknowledgements before it",
    ),
    Mutant(
        "anything-is-in-flight",
        CHECK,
        "return is_on_another and delivery.at_ms - acked.acked_ms <= IN_FLIGHT_MS",
        "return is_on_another",
        TESTS,
        "that a delivery is on its way for a bounded time",
    ),
    Mutant(
        "the-same-connection-is-in-flight-too",
        CHECK,
        "delivery.session != acked.session and delivery.session.began_ms <= acked.acked_ms",
        "delivery.session.began_ms <= acked.acked_ms",
        TESTS,
        "that one connection is in order",
    ),
    Mutant(
        "early-by-the-longer-clock",
        CHECK,
        "due_ms - self._time.at_most_ms(delivery.at_ms)",
        "due_ms - self._time.at_most_ms(delivery.at_ms + 1)",
        TESTS,
        "that a millisecond too early is early",
    ),
    Mutant(
        "order-forgets-the-latest",
        CHECK,
        "latest[stream] = max(before, sent.number)",
        "latest[stream] = before",
        TESTS,
        "that order is compared with what came before",
    ),
    Mutant(
        "a-second-id-is-always-allowed",
        CHECK,
        "if sent.tries > 1:",
        "if True:",
        TESTS,
        "that a message stored twice was sent twice",
    ),
    Mutant(
        "a-move-counts-when-it-is-asked-for",
        TIME,
        "self._least[bisect_right(self._done, wall_ms)]",
        "self._least[bisect_right(self._asked, wall_ms)]",
        TESTS,
        "that a move counts for certain once it is done",
    ),
)
