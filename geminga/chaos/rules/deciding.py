"""Decides which rules take effect on one operation. Pure but for the counts of the rules themselves."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Final, NamedTuple

from geminga.chaos.rules.rule import Rule
from geminga.names import TopicName

_ROOTED: Final = frozenset({"metadata", "admin"})
"""Places whose paths are selected by their beginning."""


class Facts(NamedTuple):
    """What is known of one operation. Empty text and -1: not known, or not applicable."""

    client: str = ""
    version: str = ""
    command: str = ""
    direction: str = ""
    operation: str = ""
    path: str = ""
    topic: str = ""
    subscription: str = ""
    ledger_id: int = -1
    name: str = ""
    method: str = ""


class Armed:
    """A rule in force, with its counts and its generator of random numbers."""

    __slots__ = ("calls", "ends_s", "hits", "is_cleared", "random", "rule", "set_s")

    def __init__(self, rule: Rule, now_s: float, *, hits: int = 0, left_ms: int | None = None) -> None:
        """`hits` and what is `left_ms` of the duration are of an earlier process."""
        self.rule = rule
        self.set_s = now_s
        left_ms = rule.duration_ms if left_ms is None else left_ms
        self.ends_s = now_s + left_ms / 1000 if rule.duration_ms else math.inf
        self.random = random.Random(rule.seed)
        self.calls = 0
        """Operations that the rule's selectors fit."""
        self.hits = hits
        self.is_cleared = False

    def clear(self) -> None:
        self.is_cleared = True

    def is_over(self, now_s: float) -> bool:
        """Whether what the rule has begun ends as well. The last hit of its `count` still takes effect."""
        return self.is_cleared or now_s >= self.ends_s

    def delay_s(self) -> float:
        """The latency of one hit, drawn if the rule has a jitter."""
        rule = self.rule
        if not rule.jitter_ms:
            return rule.latency_ms / 1000
        low_ms, high_ms = rule.latency_ms - rule.jitter_ms, rule.latency_ms + rule.jitter_ms
        return max(0.0, self.random.uniform(low_ms, high_ms)) / 1000

    def end_reason(self, now_s: float) -> str:
        """Why the rule takes effect no longer: "count", "duration", or "" while it does."""
        if self.rule.count and self.hits >= self.rule.count:
            return "count"
        return "duration" if now_s >= self.ends_s else ""

    def is_hit(self, facts: Facts, now_s: float) -> bool:
        """Whether the rule takes effect on this operation. Counts it."""
        rule = self.rule
        if self.end_reason(now_s) or not is_selected(rule, facts):
            return False
        self.calls += 1
        if self.calls <= rule.after:
            return False
        # Drawn after `after`, so that the same seed hits the same operations whatever was let pass before.
        if rule.probability < 1.0 and self.random.random() >= rule.probability:
            return False
        self.hits += 1
        return True


def is_selected(rule: Rule, facts: Facts) -> bool:
    """Whether the operation is one that the rule is about."""
    return (
        (not rule.client or facts.client == rule.client or facts.client.rpartition(":")[0] == rule.client)
        and facts.version.startswith(rule.version)
        and rule.command in ("", facts.command)
        and rule.direction in ("", facts.direction)
        and rule.operation in ("", facts.operation)
        and (facts.path.startswith(rule.path) if rule.place in _ROOTED else rule.path in facts.path)
        and _fits(rule.topic, facts.topic)
        and rule.subscription in ("", facts.subscription)
        and rule.ledger_id in (-1, facts.ledger_id)
        and rule.name in ("", facts.name)
        and rule.method in ("", facts.method)
    )


def _fits(pattern: str, topic: str) -> bool:
    if pattern.endswith("*"):
        return topic.startswith(pattern[:-1])
    if pattern in ("", topic):
        return True
    return topic.startswith(pattern) and str(TopicName.parse(topic).partitioned_name) == pattern


def decide(
    armed: Sequence[Armed], facts: Facts, now_s: float, kinds: frozenset[str] | None = None
) -> tuple[Armed, ...]:
    """The rules that take effect on this operation, in the order in which they were set. `kinds` are those
    that the operation can suffer; None: all.
    """
    fitting = armed if kinds is None else [one for one in armed if one.rule.kind in kinds]
    return tuple(one for one in fitting if one.is_hit(facts, now_s))
