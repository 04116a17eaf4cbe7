"""Bugs of the checker of `geminga chaos run`."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

CHECK = "geminga/cli/chaos/checking/check.py"
DELIVERIES = "geminga/cli/chaos/checking/deliveries.py"
FINDINGS = "geminga/cli/chaos/checking/findings.py"
MACHINE = "geminga/cli/chaos/checking/machine.py"
TIME = "geminga/cli/chaos/checking/broker_time.py"
TESTS = ("tests/cli/chaos/test_check.py",)

MUTANTS = (
    Mutant(
        "what-came-is-not-lost",
        CHECK,
        "            if any(delivery.ack_ms for delivery in counted):",
        "            if counted:",
        TESTS,
        "that a message has to be acknowledged by the end",
    ),
    Mutant(
        "acknowledgements-count-without-an-answer",
        CHECK,
        "acked = {delivery.id for delivery in counted if delivery.acked_ms}",
        "acked = {delivery.id for delivery in counted if delivery.ack_ms}",
        TESTS,
        "that an acknowledgement counts from its answer",
    ),
    Mutant(
        "whatever-is-left-is-explained",
        CHECK,
        "if count > unsettled[left.subscription]:",
        "if count > len(history.sent[0]):",
        TESTS,
        "that the broker's counts at the end are compared",
    ),
    Mutant(
        "crashes-excuse-what-came-long-before-them",
        DELIVERIES,
        "return acked.acked_ms >= from_ms - reach_ms - waits_ms",
        "return True",
        TESTS,
        "that a crash takes back the last acknowledgements only",
    ),
    Mutant(
        "crashes-excuse-what-came-after-them",
        DELIVERIES,
        "if not acked.acked_ms <= to_ms or delivery.at_ms < from_ms:",
        "if delivery.at_ms < from_ms:",
        TESTS,
        "that a crash excuses only acknowledgements before it",
    ),
    Mutant(
        "anything-is-in-flight",
        DELIVERIES,
        "if not (is_elsewhere and after_ms <= self._machine.stretched_ms(IN_FLIGHT_MS, delivery.at_ms)):",
        "if not is_elsewhere:",
        TESTS,
        "that a delivery is on its way for a bounded time",
    ),
    Mutant(
        "no-delivery-needs-a-cause",
        DELIVERIES,
        "if held is not None and not (is_stray and held.session != delivery.session):",
        "if held is not None and held.session == delivery.session and not held.nack_ms and False:",
        TESTS,
        "that a repetition needs a cause",
    ),
    Mutant(
        "any-count-of-redeliveries",
        DELIVERIES,
        "if delivery.redeliveries > len(nacked):",
        "if delivery.redeliveries > len(nacked) + 1:",
        TESTS,
        "that the count is bounded by what was asked for",
    ),
    Mutant(
        "keys-are-released-by-arriving",
        DELIVERIES,
        "moments.append(delivery.ack_ms or NEVER_MS)",
        "moments.append(delivery.at_ms)",
        TESTS,
        "that a key is held until its message is acknowledged",
    ),
    Mutant(
        "turns-of-the-topic",
        DELIVERIES,
        "self._due[number, delivery.session] = max(before_ms, least_ms)",
        "self._due[number, delivery.session] = before_ms",
        TESTS,
        "that due times within a move are compared",
    ),
    Mutant(
        "early-by-the-longer-clock",
        DELIVERIES,
        "due_ms - self._time.at_most_ms(delivery.at_ms)",
        "due_ms - self._time.at_most_ms(delivery.at_ms + 1)",
        TESTS,
        "that a millisecond too early is early",
    ),
    Mutant(
        "early-at-first-only",
        DELIVERIES,
        "        self._check_early(sent, delivery)\n        if name not in self.of_message:\n",
        "        if name not in self.of_message:\n            self._check_early(sent, delivery)\n",
        TESTS,
        "that a message that comes again is not early either",
    ),
    Mutant(
        "order-forgets-the-latest",
        DELIVERIES,
        "self._latest[stream] = max(before, sent.number)",
        "self._latest[stream] = before",
        TESTS,
        "that order is compared with what came before",
    ),
    Mutant(
        "the-median-for-99-of-100",
        FINDINGS,
        '("99 of 100 delayed messages were", self.late_ms, self.late_shown_ms, 1, expect.p99)',
        '("99 of 100 delayed messages were", self.late_ms, self.late_shown_ms, 0, expect.p99)',
        TESTS,
        "that p99 compares the 99 of 100",
    ),
    Mutant(
        "late-whatever-the-machine-did",
        MACHINE,
        "return round(sum(sums[last] - sums[first] for sums in (self._client, self._broker)))",
        "return 0",
        TESTS,
        "that lateness is judged by a probe of the same run",
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
