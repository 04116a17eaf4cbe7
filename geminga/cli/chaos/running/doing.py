"""Does the steps of a scenario, each at its time, and notes what it did."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final

import trio

from geminga.cli.admin.admin_http import RequestFailed, topic_path
from geminga.cli.chaos.checking.broker_time import BrokerTime
from geminga.cli.chaos.checking.history import Doing, Fault, Fencing, History, Jump, Seek, Taking
from geminga.cli.chaos.checking.scenario import OPERATORS, Scenario, Step
from geminga.cli.chaos.running.producing import wall_ms
from geminga.cli.chaos.running.target import Target, ask

NEEDS_OURS: Final = frozenset({"fault", "clear", "kill", "stop", "pause", "advance", *OPERATORS})
"""Actions that another broker does not know, or that would end a process that is not ours."""
_FOR_EVER_MS: Final = 1 << 42
START_SECONDS_MAX: Final = 20.0
LOOK_SECONDS_MAX: Final = 0.2
MOVE_SECONDS_MAX: Final = 3600
"""A move of the clock takes as long as what falls due on the way."""
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
        look: Callable[[], Awaitable[None]],
    ) -> None:
        """`topics` without their partitions; `burst` starts more producers, `grow` consumers of partitions
        up to that number; `look` takes a sample of the broker.
        """
        self._look = look
        self._scenario = scenario
        self._target = target
        self._history = history
        self._topics = topics
        self._burst = burst
        self._grow_consumers = grow
        self._partitions = scenario.load.partitions
        self.faults = FaultHits(target, history)
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
            "copy": self._copy,
            "restore": self._restore,
            "remove": self._remove,
        }
        self._copied: tuple[Step, int, int] | None = None
        """The last copy, and when it was begun and done."""

    async def run(self) -> None:
        """All steps, each at its time or as soon after it as those before are done."""
        began_s = trio.current_time()
        for step in sorted(self._scenario.steps, key=lambda step: step.at):
            await trio.sleep(max(0.0, began_s + step.at / 1000 - trio.current_time()))
            if step.do in NEEDS_OURS and not self._target.is_ours:
                self._note(f"{self._text(step)}: left out, this broker does not have it", kind="skipped")
                continue
            await self._look_soon()
            try:
                await self._actions[step.do](step)
            except RequestFailed as error:
                self._note(f"{self._text(step)}: {error}", kind="skipped")
                self._history.broken.append(f"step {self._text(step)}: {error}")
            await self._look_soon()

    async def _look_soon(self) -> None:
        """A sample beside a step is for the picture. A busy broker answers it last, and no step waits for
        that: a fault that comes when all is sent shows nothing.
        """
        with trio.move_on_after(LOOK_SECONDS_MAX):
            await self._look()

    async def _ask(self, method: str, path: str, body: object = None, *, seconds_max: float = 30) -> Any:
        """As `ask`; a broker that is being started again is waited for."""
        ends_s = trio.current_time() + START_SECONDS_MAX
        while True:
            try:
                return await ask(self._target, method, path, body, seconds_max=seconds_max)
            except RequestFailed as error:
                # Without a status nothing was there to refuse it.
                if error.status or trio.current_time() >= ends_s:
                    raise
            await trio.sleep(0.1)

    async def advance(self, length_ms: int) -> None:
        """Move the broker's clock; what falls due has been handed to consumers on return."""
        asked_ms = wall_ms()
        time = BrokerTime(self._history.offset_ms, self._history.jumps)
        # Before the request: what a move makes due comes before its answer.
        jump = Jump(
            asked_ms=asked_ms,
            length_ms=length_ms,
            to_ms=time.at_most_ms(asked_ms) + length_ms + MOVE_SECONDS_MAX * 1000,
        )
        self._history.jumps.append(jump)
        moved = await self._ask(
            "POST",
            "/geminga/clock",
            {"ms": length_ms, "wait": "dispatched"},
            seconds_max=MOVE_SECONDS_MAX,
        )
        jump.end(wall_ms(), moved["from_ms"], moved["to_ms"], has_waiting=bool(moved.get("waiting")))

    def _note(self, text: str, kind: Any = "step") -> None:
        self._history.doings.append(Doing(at_ms=wall_ms(), text=text, kind=kind))

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
        fault = self.faults.begin(self._text(step), kind, step.needs_hits)
        if kind in _FENCING:
            began_ms = wall_ms()
            lasts_ms = step.rule.get("durationMs", _FOR_EVER_MS)
            self._history.fencings.append(
                Fencing(from_ms=began_ms, to_ms=began_ms + lasts_ms + _FENCED_LATER_MS)
            )
        for rule in self._rules(step.rule):
            named = {**rule, "id": rule.get("id") or self.faults.new_id(fault)}
            await self._set(named)

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
        await self.faults.look()
        await self._ask("DELETE", "/geminga/faults")

    async def _kill(self, step: Step) -> None:
        await self.faults.look()
        self._note("kill", "crash")
        await self._target.kill()
        self._note("started again", "started")
        self.faults.restarted()

    async def _stop(self, step: Step) -> None:
        await self.faults.look()
        self._note("stop")
        await self._target.restart()
        self._note("started again")
        self.faults.restarted()

    async def _copy(self, step: Step) -> None:
        await self.faults.look()
        self._note("stop, copy the data directory, start" if step.stopped else "copy the data directory")
        began_ms = wall_ms()
        await self._target.copy(stopped=step.stopped)
        self._copied = (step, began_ms, wall_ms())
        if step.stopped:
            self._note("started again")
            self.faults.restarted()

    async def _restore(self, step: Step) -> None:
        assert self._copied is not None
        copy, copied_ms, copied_until_ms = self._copied
        await self.faults.look()
        end, kind = ("stop", "step") if step.stopped else ("kill", "crash")
        asked_ms = wall_ms()
        self._note(f"{end}, put the last copy in place, start", kind)
        await self._target.restore(stopped=step.stopped)
        self._history.takings.append(
            Taking(
                what="restore",
                copied_ms=copied_ms,
                copied_until_ms=copied_until_ms,
                is_orderly=copy.stopped,
                asked_ms=asked_ms,
                done_ms=wall_ms(),
            )
        )
        self._note("started again", "started")
        self.faults.restarted()

    async def _remove(self, step: Step) -> None:
        await self.faults.look()
        asked_ms = wall_ms()
        self._note(f"remove the {step.files} files", "step" if step.stopped else "crash")
        said = await self._target.remove(step.files, stopped=step.stopped)
        if step.files == "entry-log":
            self._history.takings.append(Taking(what="entry-log", asked_ms=asked_ms, done_ms=wall_ms()))
        if not said:
            self._history.broken.append(f"the broker has not noticed that {step.files} files were removed")
        self._note(f"started again; the broker said: {said or 'nothing'}", "started")
        self.faults.restarted()

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
        self._note("seek")
        for topic in self._parts():
            for consumers in self._scenario.consumers:
                path = f"{topic_path(topic)}/subscription/{consumers.subscription}/resetcursor/0"
                await self._ask("POST", path)
        self._history.seeks.append(Seek(asked_ms=asked_ms, done_ms=wall_ms()))

    async def _grow(self, step: Step) -> None:
        self._note(f"grow to {step.partitions} partitions")
        for topic in self._topics:
            await self._ask("POST", f"{topic_path(topic)}/partitions", step.partitions)
        self._partitions = step.partitions
        await self._grow_consumers(step.partitions)

    async def _more(self, step: Step) -> None:
        self._note(f"burst of {step.messages} messages from {step.producers} more producers on each topic")
        self._burst(step)


class FaultHits:
    """How often each fault of a run took effect, by what the broker tells of its rules while they last."""

    def __init__(self, target: Target, history: History) -> None:
        self._target = target
        self._history = history
        self._in_force: dict[str, int] = {}
        """Until when each rule was in force that ends with its process, by its id, as far as was seen."""

    def begin(self, text: str, kind: str, needs_hits: int) -> Fault:
        """A fault that is put in force now, by rules that `new_id` names."""
        ends = kind == "process/kill" or kind.endswith(("/torn", "/eio"))
        fault = Fault(text=text, at_ms=wall_ms(), needs_hits=needs_hits, ends_broker=ends)
        self._history.faults.append(fault)
        return fault

    def new_id(self, fault: Fault) -> str:
        fault.ids.append(f"chaos-{self._history.faults.index(fault)}-{len(fault.ids)}")
        return fault.ids[-1]

    async def look(self) -> None:
        """Before the rules go, too: their counts go with them."""
        if not (self._history.faults and self._target.is_ours):
            return
        try:
            states = await ask(self._target, "GET", "/geminga/faults")
        except RequestFailed:
            return
        hits = {state["rule"]["id"]: state["hits"] for state in states}
        self._in_force = {
            state["rule"]["id"]: wall_ms() + state["leftMs"] if state["leftMs"] >= 0 else _FOR_EVER_MS
            for state in states
            if not state["ended"] and not state["rule"].get("keep")
        }
        for fault in self._history.faults:
            fault.count(sum(hits.get(one, 0) for one in fault.ids))

    async def end(self) -> None:
        """Clear all rules. One that takes effect only in the final stop would fail what is not judged."""
        if self._history.faults and self._target.is_ours:
            with contextlib.suppress(RequestFailed):
                await ask(self._target, "DELETE", "/geminga/faults")

    def restarted(self) -> None:
        """The broker has begun again, and has none of its rules but those that it keeps."""
        now_ms, in_force = wall_ms(), self._in_force
        for fault in self._history.faults:
            if any(in_force.get(one, 0) > now_ms for one in fault.ids) and not fault.ends_broker:
                text = f"ended by the restart: {fault.text}"
                self._history.doings.append(Doing(at_ms=now_ms, text=text))
        self._in_force = {}

    def broker_ended(self) -> None:
        """By one of those rules that end it, which it cannot tell any more."""
        for fault in self._history.faults:
            if fault.ends_broker and not fault.hits:
                fault.count(1)
                return


def length_text(length_ms: int) -> str:
    """`30d`, `90m`, `250ms`"""
    for unit_ms, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s")):
        if length_ms >= unit_ms and length_ms % unit_ms == 0:
            return f"{length_ms // unit_ms}{unit}"
    return f"{length_ms}ms"
