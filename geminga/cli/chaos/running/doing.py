"""Does the steps of a scenario, each at its time, and notes what it did."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final

import trio

from geminga.cli.admin.admin_http import RequestFailed, topic_path
from geminga.cli.chaos.checking.history import Doing, Fencing, History, Jump, Seek
from geminga.cli.chaos.checking.scenario import Scenario, Step
from geminga.cli.chaos.running.producing import wall_ms
from geminga.cli.chaos.running.target import Target, ask

NEEDS_OURS: Final = frozenset({"fault", "clear", "kill", "stop", "pause", "advance"})
"""Actions that another broker does not know, or that would end a process that is not ours."""
_FOR_EVER_MS: Final = 1 << 42
START_SECONDS_MAX: Final = 20.0
_FENCING: Final = frozenset({"topic/fence", "metadata/conflict", "metadata/refused"})
"""Faults after which a topic goes on from what was durable."""
_FENCED_LATER_MS: Final = 1000
"""What a rule began may fence a topic when the rule has ended."""


class Steps:
    def __init__(
        self,
        scenario: Scenario,
        target: Target,
        history: History,
        topics: Sequence[str],
        burst: Callable[[Step], None],
        grow: Callable[[int], Awaitable[None]],
    ) -> None:
        """`topics` without their partitions; `burst` starts more producers, `grow` consumers of partitions
        up to that number.
        """
        self._scenario = scenario
        self._target = target
        self._history = history
        self._topics = topics
        self._burst = burst
        self._grow_consumers = grow
        self._partitions = scenario.load.partitions
        self._actions: dict[str, Callable[[Step], Awaitable[None]]] = {
            "fault": self._fault,
            "clear": self._clear,
            "kill": self._kill,
            "stop": self._stop,
            "pause": self._pause,
            "advance": self._advance,
            "unload": self._unload,
            "expire": self._expire,
            "seek": self._seek,
            "grow": self._grow,
            "burst": self._more,
        }

    async def run(self) -> None:
        """All steps, each at its time or as soon after it as those before are done."""
        began_s = trio.current_time()
        for step in sorted(self._scenario.steps, key=lambda step: step.at):
            await trio.sleep(max(0.0, began_s + step.at / 1000 - trio.current_time()))
            if step.do in NEEDS_OURS and not self._target.is_ours:
                self._note(f"{self._text(step)}: left out, this broker does not have it", kind="skipped")
                continue
            try:
                await self._actions[step.do](step)
            except RequestFailed as error:
                self._note(f"{self._text(step)}: {error}", kind="skipped")
                self._history.unfinished.append(f"step {self._text(step)}: {error}")

    async def _ask(self, method: str, path: str, body: object = None) -> Any:
        """As `ask`; a broker that is being started again is waited for."""
        ends_s = trio.current_time() + START_SECONDS_MAX
        while True:
            try:
                return await ask(self._target, method, path, body)
            except RequestFailed as error:
                # Without a status nothing was there to refuse it.
                if error.status or trio.current_time() >= ends_s:
                    raise
            await trio.sleep(0.1)

    async def advance(self, length_ms: int) -> None:
        """Move the broker's clock; what falls due has been handed to consumers on return."""
        asked_ms = wall_ms()
        moved = await self._ask("POST", "/geminga/clock", {"ms": length_ms, "wait": "dispatched"})
        self._history.jumps.append(Jump(asked_ms, wall_ms(), moved["from_ms"], moved["to_ms"]))

    def _note(self, text: str, kind: Any = "step") -> None:
        self._history.doings.append(Doing(wall_ms(), text, kind))

    def _text(self, step: Step) -> str:
        if step.do == "fault":
            fields = " ".join(f"{k}={v}" for k, v in step.rule.items() if k not in {"place", "kind"})
            return f"fault {step.rule['place']}/{step.rule['kind']} {fields}".rstrip()
        if step.length:
            return f"{step.do} {length_text(step.length)}"
        return step.do

    async def _fault(self, step: Step) -> None:
        kind = f"{step.rule['place']}/{step.rule['kind']}"
        self._note(self._text(step))
        if kind in _FENCING:
            began_ms = wall_ms()
            lasts_ms = step.rule.get("durationMs", _FOR_EVER_MS)
            self._history.fencings.append(Fencing(began_ms, began_ms + lasts_ms + _FENCED_LATER_MS))
        for rule in self._rules(step.rule):
            await self._set(rule)

    async def _set(self, rule: dict[str, Any]) -> None:
        """Put it in force. A bucket that is not sealed yet is waited for."""
        ends_s = trio.current_time() + START_SECONDS_MAX
        while True:
            try:
                await self._ask("POST", "/geminga/faults", rule)
            except RequestFailed as error:
                if not error.status.startswith("404") or trio.current_time() >= ends_s:
                    raise
            else:
                return
            await trio.sleep(0.1)

    def _rules(self, rule: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The rule, for each topic and subscription if it is about them and names none."""
        place, kind = rule["place"], rule["kind"]
        needs_subscription = (place == "bucket" and kind != "fail") or place == "cursor"
        if not (needs_subscription or place == "topic") or "topic" in rule:
            yield rule
            return
        for topic in self._parts():
            if needs_subscription and "subscription" not in rule:
                # One index may be shared by all of them: the rule for the first finds it.
                yield {**rule, "topic": topic, "subscription": self._scenario.consumers[0].subscription}
            else:
                yield {**rule, "topic": topic}

    def _parts(self) -> Iterator[str]:
        for topic in self._topics:
            if self._partitions:
                yield from (f"{topic}-partition-{number}" for number in range(self._partitions))
            else:
                yield topic

    async def _clear(self, step: Step) -> None:
        self._note("clear")
        await self._ask("DELETE", "/geminga/faults")

    async def _kill(self, step: Step) -> None:
        self._note("kill", "crash")
        await self._target.kill()
        # Once more when it runs again: what was confirmed before the kill may have been noted after it.
        self._note("started again", "crash")

    async def _stop(self, step: Step) -> None:
        self._note("stop")
        await self._target.restart()
        self._note("started again")

    async def _pause(self, step: Step) -> None:
        self._note(self._text(step))
        await self._target.pause(step.length)

    async def _advance(self, step: Step) -> None:
        self._note(self._text(step))
        await self.advance(step.length)

    async def _unload(self, step: Step) -> None:
        self._note("unload")
        for topic in self._parts():
            await self._ask("PUT", f"{topic_path(topic)}/unload")

    async def _expire(self, step: Step) -> None:
        """Have the broker let go of what is older than the namespace's TTL, now and not at its next check."""
        self._note("expire")
        seconds = max(1, self._scenario.ttl // 1000)
        for topic in self._parts():
            for consumers in self._scenario.consumers:
                path = f"{topic_path(topic)}/subscription/{consumers.subscription}/expireMessages/{seconds}"
                await self._ask("POST", path)

    async def _seek(self, step: Step) -> None:
        """Set all subscriptions back to their beginnings."""
        asked_ms = wall_ms()
        self._note("seek", "seek")
        for topic in self._parts():
            for consumers in self._scenario.consumers:
                path = f"{topic_path(topic)}/subscription/{consumers.subscription}/resetcursor/0"
                await self._ask("POST", path)
        # Once more: what was confirmed before it may have been noted after it was asked for.
        self._note("seek done", "seek")
        self._history.seeks.append(Seek(asked_ms, wall_ms()))

    async def _grow(self, step: Step) -> None:
        self._note(f"grow to {step.partitions} partitions")
        for topic in self._topics:
            await self._ask("POST", f"{topic_path(topic)}/partitions", step.partitions)
        self._partitions = step.partitions
        await self._grow_consumers(step.partitions)

    async def _more(self, step: Step) -> None:
        self._note(f"burst of {step.messages} messages from {step.producers} more producers on each topic")
        self._burst(step)


def length_text(length_ms: int) -> str:
    """`30d`, `90m`, `250ms`"""
    for unit_ms, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s")):
        if length_ms >= unit_ms and length_ms % unit_ms == 0:
            return f"{length_ms // unit_ms}{unit}"
    return f"{length_ms}ms"
