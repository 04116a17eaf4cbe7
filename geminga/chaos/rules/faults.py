"""The rules of a running broker. With `--chaos` there is one `Faults`; without it, none."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from geminga.chaos.rules.deciding import Armed, Facts, decide
from geminga.chaos.rules.kept_file import Kept, KeptFile
from geminga.chaos.rules.places import PLACES, kind_of
from geminga.chaos.rules.rule import InvalidRule, Rule
from geminga.clock import Clock
from geminga.errors import PeerError, StorageError
from geminga.events.recording import Record, unrecorded

RULES_MAX: Final = 100
"""Rules in force and ended ones together; a new rule removes the oldest ended one."""

log = logging.getLogger("geminga.chaos")


class NoSuchRule(PeerError):
    http_status = 404


class TooManyRules(PeerError):
    http_status = 409


class RuleState(msgspec.Struct, frozen=True, rename="camel"):
    """A rule, and what became of it so far."""

    rule: Rule
    calls: int
    """Operations that its selectors fitted."""
    hits: int
    ended: str
    """Why it takes effect no longer: "count" or "duration"; "" while it is in force."""
    left_ms: int
    """Until its duration ends; -1 without one."""


class Door:
    """The rules of one place. `armed` is replaced as a whole, so any thread may look at it."""

    __slots__ = ("_clock", "_lock", "_on_hit", "armed", "on_armed", "on_disarmed")

    def __init__(self, clock: Clock, lock: threading.Lock, on_hit: Callable[[Armed], bool]) -> None:
        """`on_hit` is called for each rule that is about to take effect, on the thread of the operation, and
        says whether it may.
        """
        self._clock = clock
        self._lock = lock
        self._on_hit = on_hit
        self.armed: tuple[Armed, ...] = ()
        self.on_armed: set[Callable[[], None]] = set()
        """Called on the event loop when the place gets a rule."""
        self.on_disarmed: set[Callable[[], None]] = set()
        """Called on the event loop when a rule of the place is cleared."""

    def hit(self, facts: Facts, kinds: frozenset[str] | None = None) -> tuple[Armed, ...]:
        """The rules of these kinds (None: of all) that take effect on this operation; it is counted. On any
        thread.
        """
        with self._lock:
            now_s = self._clock.monotonic_s()
            hit = decide(self.armed, facts, now_s, kinds)
        taken = tuple(one for one in hit if self._on_hit(one))
        # Ended rules leave, so that a door whose rules have all ended costs nothing again. A last hit that
        # could not be written down ends none.
        if any(one.end_reason(now_s) for one in self.armed):
            with self._lock:
                self.armed = tuple(one for one in self.armed if not one.end_reason(now_s))
        return taken

    def arm(self, armed: Armed) -> None:
        with self._lock:
            self.armed = (*self.armed, armed)
        for call in tuple(self.on_armed):
            call()

    def disarm(self, armed: Armed) -> None:
        with self._lock:
            self.armed = tuple(one for one in self.armed if one is not armed)
        armed.clear()
        for call in tuple(self.on_disarmed):
            call()

    def is_over(self, armed: Armed) -> bool:
        """Whether a rule that has hit was cleared since, or its duration has ended."""
        return armed.is_over(self._clock.monotonic_s())


class Faults:
    """Sets, lists and clears rules, on the event loop; the doors are asked on any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._record: Record = unrecorded
        self._lock = threading.Lock()
        self._rules: dict[str, Armed] = {}
        self._given = 0
        self._file: KeptFile | None = None
        self._saving = threading.Lock()
        self._of_start: frozenset[str] = frozenset()
        """The ids of the rules that the command line of this start names."""
        self.hits_by_kind: dict[tuple[str, str], int] = {}
        """Hits of rules that were cleared or removed; `figures` adds those of the listed ones."""
        self.doors: Final = {place: Door(clock, self._lock, self._on_hit) for place in PLACES}

    def tell(self, record: Record) -> None:
        """Tell events from now on, and of what was set before anybody listened."""
        was_silent, self._record = self._record is unrecorded, record
        if was_silent:
            for armed in self._rules.values():
                self._tell_set(armed.rule)

    def begin(self, rules: Sequence[Rule], file: KeptFile) -> None:
        """Before anything is opened: put in force the rules that the command line names, and those that an
        earlier process has kept in the file, with what is left of them. One that is in both goes on from
        where it was, so that a start which is repeated word for word repeats no fault that has ended. Raises
        StorageError.
        """
        kept = {one.rule.id: one for one in file.read()}
        self._of_start = frozenset(rule.id for rule in rules)
        for rule in rules:
            before = kept.pop(rule.id, None)
            self._arm(rule, before if before is not None and before.rule == rule else None)
        for before in kept.values():
            if len(self._rules) < RULES_MAX:
                self._arm(before.rule, before)
                if self._state(self._rules[before.rule.id]).ended:
                    self._forget(before.rule.id)
        self._file = file
        self._save()
        for state in self.rules():
            if not state.ended:
                log.warning("a fault is in force from the start on: %s", _text(state.rule))

    def _save(self) -> None:
        """Write the rules that outlive this process; durable on return. On any thread. Raises
        StorageError.
        """
        if self._file is None:
            return
        with self._saving:
            now_s, now_ms = self._clock.monotonic_s(), self._clock.now_ms()
            self._file.write(
                [
                    Kept(
                        armed.rule,
                        armed.hits,
                        now_ms + round((armed.ends_s - now_s) * 1000) if armed.rule.duration_ms else 0,
                    )
                    for armed in tuple(self._rules.values())
                    if armed.rule.keep
                    # Else the next start with the same command line would begin with a fault that has ended.
                    and (armed.rule.id in self._of_start or not armed.end_reason(now_s))
                ]
            )

    def _on_hit(self, armed: Armed) -> bool:
        """Whether a hit may take effect: one that is counted over starts is durable before, since it may end
        the process.
        """
        if armed.rule.keep and armed.rule.count:
            try:
                self._save()
            except StorageError as error:
                with self._lock:
                    armed.hits -= 1
                log.error(
                    "%s: a hit has no effect, since it cannot be written down: %s", armed.rule.id, error
                )
                return False
        self._tell_hit(armed)
        return True

    def _tell_hit(self, armed: Armed) -> None:
        rule = armed.rule
        self._record(
            "fault-hit",
            topic=rule.topic,
            subscription=rule.subscription,
            text=_text(rule),
            counts={"hits": armed.hits},
        )

    def set(self, rule: Rule) -> RuleState:
        """Put a checked rule in force. Raises InvalidRule if its id is taken, TooManyRules, and StorageError
        if it cannot be kept; then it is not in force.
        """
        if rule.id in self._rules and not self._state(self._rules[rule.id]).ended:
            raise InvalidRule(f"id: a rule {rule.id} is in force; clear it first, or leave the id out")
        self._make_room()
        if not rule.id:
            rule = msgspec.structs.replace(rule, id=self._new_id())
        else:
            self._forget(rule.id)
        armed = self._arm(rule)
        if rule.keep:
            try:
                self._save()
            except StorageError:
                self._forget(rule.id)
                raise
        self._tell_set(rule)
        if kind_of(rule).lasts:
            self._tell_hit(armed)
        return self._state(armed)

    def _arm(self, rule: Rule, before: Kept | None = None) -> Armed:
        now_s, kind = self._clock.monotonic_s(), kind_of(rule)
        if before is None:
            armed = Armed(rule, now_s)
        else:
            # Not longer than the rule says, also if the machine's clock was set back meanwhile.
            left_ms = min(max(0, before.ends_ms - self._clock.now_ms()), rule.duration_ms)
            armed = Armed(rule, now_s, hits=before.hits, left_ms=left_ms)
        self._rules[rule.id] = armed
        if kind.lasts:
            armed.hits += 1
        if not kind.at_once:
            self.doors[rule.place].arm(armed)
        return armed

    def _tell_set(self, rule: Rule) -> None:
        self._record("fault-set", topic=rule.topic, subscription=rule.subscription, text=_text(rule))

    def struck(self, rule_id: str) -> RuleState:
        """Count the hit of a rule that acts at once. The rule has ended."""
        armed = self._rules[rule_id]
        armed.hits += 1
        self._tell_hit(armed)
        return self._state(armed)

    def get(self, rule_id: str) -> RuleState:
        return self._state(self._found(rule_id))

    def rules(self) -> list[RuleState]:
        """In the order in which they were set."""
        return [self._state(armed) for armed in self._rules.values()]

    def clear(self, rule_id: str) -> RuleState:
        """End the rule and remove it from the list. Raises NoSuchRule, and StorageError if a later start may
        have it again.
        """
        state = self._end(rule_id)
        if state.rule.keep:
            self._save()
        return state

    def _end(self, rule_id: str) -> RuleState:
        state = self._state(self._found(rule_id))
        self._forget(rule_id)
        rule = state.rule
        self._record(
            "fault-cleared",
            topic=rule.topic,
            subscription=rule.subscription,
            text=_text(rule),
            counts={"hits": state.hits},
        )
        return state

    def clear_all(self) -> list[RuleState]:
        """End all rules, also if StorageError says that a later start may have some of them again."""
        states = [self._end(rule_id) for rule_id in tuple(self._rules)]
        self._save()
        return states

    def in_force(self) -> Iterator[tuple[str, str, int]]:
        """(place, kind, rules in force) of each kind that has one."""
        counts: dict[tuple[str, str], int] = {}
        for state in self.rules():
            if not state.ended:
                key = (state.rule.place, state.rule.kind)
                counts[key] = counts.get(key, 0) + 1
        for (place, kind), count in counts.items():
            yield place, kind, count

    def hits(self) -> Iterator[tuple[str, str, int]]:
        """(place, kind, hits since the start) of each kind that a rule has named."""
        counts = dict(self.hits_by_kind)
        for armed in self._rules.values():
            key = (armed.rule.place, armed.rule.kind)
            counts[key] = counts.get(key, 0) + armed.hits
        for (place, kind), count in counts.items():
            yield place, kind, count

    def _found(self, rule_id: str) -> Armed:
        if rule_id not in self._rules:
            raise NoSuchRule(
                f"there is no rule {rule_id[:100]!r}; 'geminga fault list' shows those there are"
            )
        return self._rules[rule_id]

    def _state(self, armed: Armed) -> RuleState:
        now_s = self._clock.monotonic_s()
        ended = armed.end_reason(now_s)
        if not ended and armed.hits and PLACES[armed.rule.place][armed.rule.kind].at_once:
            ended = "count"
        left_ms = max(0, round((armed.ends_s - now_s) * 1000)) if armed.rule.duration_ms else -1
        return RuleState(armed.rule, armed.calls, armed.hits, ended, left_ms)

    def _make_room(self) -> None:
        while len(self._rules) >= RULES_MAX:
            ended = next((one for one, armed in self._rules.items() if self._state(armed).ended), None)
            if ended is None:
                raise TooManyRules(f"{RULES_MAX} rules are in force; clear some with 'geminga fault clear'")
            self._forget(ended)

    def _forget(self, rule_id: str) -> None:
        armed = self._rules.pop(rule_id, None)
        if armed is not None:
            self.doors[armed.rule.place].disarm(armed)
            key = (armed.rule.place, armed.rule.kind)
            self.hits_by_kind[key] = self.hits_by_kind.get(key, 0) + armed.hits

    def _new_id(self) -> str:
        while True:
            self._given += 1
            if f"f{self._given}" not in self._rules:
                return f"f{self._given}"


def _text(rule: Rule) -> str:
    return f"{rule.id} {rule.place}/{rule.kind}"
