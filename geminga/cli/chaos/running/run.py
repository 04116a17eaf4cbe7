"""One run of a scenario, from the first topic to the last acknowledgement."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec
import trio

from geminga.cli.admin.admin_http import RequestFailed
from geminga.cli.chaos.checking.history import Doing, History, Producing, Receiving
from geminga.cli.chaos.checking.load_plan import planned
from geminga.cli.chaos.checking.scenario import InvalidScenario, Load, Scenario, Step
from geminga.cli.chaos.running.consuming import LoadConsumer
from geminga.cli.chaos.running.doing import Steps, length_text
from geminga.cli.chaos.running.producing import LoadProducer, wall_ms
from geminga.cli.chaos.running.sampling import sample_forever
from geminga.cli.chaos.running.target import Target, ask

NAMESPACE: Final = "public/chaos"
QUIET_SECONDS: Final = 0.5
"""So long after the last acknowledgement a run waits for what should not come."""
LOOK_SECONDS: Final = 0.05
WAIT_MS_MAX: Final = 600_000
"""The longest delay that a run waits for on a clock that cannot be moved."""
_NO_LETTER: Final = re.compile("[^A-Za-z0-9-]")
TOGETHER_MS: Final = 500
SHOWN_EVENTS: Final = frozenset(
    {"bucket-lost", "bucket-rebuilt", "caught-up", "disk-read-only", "disk-writable", "topic-fenced"}
)


class Run:
    """Use once. `run` returns the history."""

    def __init__(self, scenario: Scenario, target: Target, say: Callable[[str], None]) -> None:
        """`say` gets a line of progress now and then."""
        self._scenario = scenario
        self._target = target
        self._say = say
        self._history = History(wall_ms())
        self._producers: list[LoadProducer] = []
        self._consumers: list[LoadConsumer] = []
        self._partitions = scenario.load.partitions
        # A name of its own: a broker that runs already may have had this scenario before.
        mark = f"{_NO_LETTER.sub('-', scenario.name)[:100]}-{wall_ms():x}"
        self._topics = [f"persistent://{NAMESPACE}/{mark}-{n}" for n in range(scenario.load.topics)]

    async def run(self) -> History:
        """Raises `InvalidScenario` if this broker cannot run it, `RequestFailed` if the topics cannot be
        made, `BrokerFailed` if the broker stays away.
        """
        load = self._scenario.load
        if not self._target.is_ours and load.delayed and load.delay[1] > WAIT_MS_MAX:
            raise InvalidScenario(
                f"{self._scenario.name}: its messages are delayed by up to {length_text(load.delay[1])}, and "
                f"the clock of this broker cannot be moved; copy it, and shorten load.delay"
            )
        await self._prepare()
        history = self._history
        steps = Steps(self._scenario, self._target, history, self._topics, self._burst, self._grow)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for place in range(len(self._topics)):
                for plan in self._scenario.consumers:
                    receiving = Receiving(place, plan.subscription, plan.type)
                    self._history.subscriptions.append(receiving)
            await self._consume(0)
            nursery.start_soon(sample_forever, self._target, history)
            nursery.start_soon(self._watch)
            for topic in range(len(self._topics)):
                for _ in range(self._scenario.load.producers):
                    self._produce(topic, self._scenario.load)
            await steps.run()
            await self._drain(steps)
            nursery.cancel_scope.cancel()
        history.end(wall_ms())
        await self._read_events()
        return history

    # -- before ----------------------------------------------------------------------------------------------

    async def _prepare(self) -> None:
        clusters = await ask(self._target, "GET", "/admin/v2/clusters")
        try:
            await ask(
                self._target, "PUT", f"/admin/v2/namespaces/{NAMESPACE}", {"replication_clusters": clusters}
            )
        except RequestFailed as error:
            if not error.status.startswith("409"):
                raise
        if self._scenario.ttl:
            path = f"/admin/v2/namespaces/{NAMESPACE}/messageTTL"
            await ask(self._target, "POST", path, self._scenario.ttl // 1000)
        for topic in self._topics:
            path = f"/admin/v2/persistent/{topic.removeprefix('persistent://')}"
            if self._scenario.load.partitions:
                await ask(self._target, "PUT", f"{path}/partitions", self._scenario.load.partitions)
            else:
                await ask(self._target, "PUT", path)
        if self._scenario.clock == "virtual" and self._target.is_ours:
            shown = await ask(self._target, "GET", "/geminga/clock")
            self._history.begin(shown["now_ms"] - wall_ms())

    # -- load ------------------------------------------------------------------------------------------------

    async def _consume(self, first: int) -> None:
        """Subscribe on all partitions from the `first` on."""
        plans = {plan.subscription: plan for plan in self._scenario.consumers}
        for receiving in self._history.subscriptions:
            plan = plans[receiving.subscription]
            for part, name in self._parts(self._topics[receiving.topic])[first:]:
                for _ in range(plan.count):
                    number = len(self._consumers)
                    consumer = LoadConsumer(name, part, number, self._scenario.seed, plan, receiving)
                    self._consumers.append(consumer)
                    await self._nursery.start(consumer.run, self._target.service_url)

    async def _grow(self, partitions: int) -> None:
        first, self._partitions = self._partitions, partitions
        await self._consume(first)

    def _parts(self, topic: str) -> list[tuple[int, str]]:
        return [(n, f"{topic}-partition-{n}") for n in range(self._partitions)] or [(-1, topic)]

    def _produce(self, topic: int, load: Load) -> None:
        """A producer more. On a partitioned topic each has its own partition, in turns."""
        number = len(self._history.producers)
        parts = self._parts(self._topics[topic])
        name = parts[number % len(parts)][1]
        self._history.producers.append(Producing(topic, f"p{number}"))
        sent = planned(load, self._scenario.seed, number)
        self._history.sent.append(sent)
        producer = LoadProducer(name, f"chaos-{self._scenario.seed}-{number}", load, sent)
        self._producers.append(producer)
        self._nursery.start_soon(producer.run, self._target.service_url)

    def _burst(self, step: Step) -> None:
        load = msgspec.structs.replace(
            self._scenario.load, messages=step.messages, delayed=step.delayed, rate=0
        )
        for topic in range(len(self._topics)):
            for _ in range(step.producers):
                self._produce(topic, load)

    async def _watch(self) -> None:
        """Note, and mend, that the broker ends by itself."""
        while True:
            why = await self._target.ended()
            self._history.doings.append(Doing(wall_ms(), f"the broker ended by itself: {why}", "ended"))

    # -- the end ---------------------------------------------------------------------------------------------

    async def _drain(self, steps: Steps) -> None:
        """Until all that was confirmed is delivered and acknowledged; or nothing moves for too long."""
        moved_s, before = trio.current_time(), (-1, -1)
        has_said_s = trio.current_time()
        while True:
            left = sum(producer.left for producer in self._producers)
            deliveries = sum(len(one.deliveries) for one in self._history.subscriptions)
            if (left, deliveries) != before:
                moved_s, before = trio.current_time(), (left, deliveries)
            if not left and await trio.to_thread.run_sync(self._is_all_here):
                await trio.sleep(QUIET_SECONDS)
                return
            if not left and self._scenario.clock == "virtual" and self._target.is_ours:
                await self._pass_delays(steps)
            if trio.current_time() - moved_s > self._scenario.drain / 1000 + self._longest_wait_s(left):
                self._give_up(left)
                return
            if trio.current_time() - has_said_s > 2:
                has_said_s = trio.current_time()
                self._say(f"{left:,} messages to confirm, {deliveries:,} deliveries")
            await trio.sleep(LOOK_SECONDS)

    def _longest_wait_s(self, left: int) -> float:
        """How long nothing may move since delayed messages wait, on a clock that is not moved."""
        is_moved = self._scenario.clock == "virtual" and self._target.is_ours
        if is_moved or not self._scenario.load.delayed:
            return 0.0
        return self._scenario.load.delay[1] / 1000

    async def _pass_delays(self, steps: Steps) -> None:
        if self._scenario.load.delayed:
            await steps.advance(self._scenario.load.delay[1] // 10 + 1)

    def _is_all_here(self) -> bool:
        if not all(consumer.is_idle for consumer in self._consumers):
            return False
        wanted: dict[int, int] = {}
        for producing, sent in zip(self._history.producers, self._history.sent, strict=True):
            wanted[producing.topic] = wanted.get(producing.topic, 0) + sum(
                1 for one in sent if one.receipt_ms
            )
        for one in self._history.subscriptions:
            came = {(d.producer, d.number) for d in one.deliveries if self._history.is_after_seeks(d)}
            if len(came) < wanted[one.topic]:
                return False
        return True

    def _give_up(self, left: int) -> None:
        waited = f"nothing moved for {self._scenario.drain / 1000:.0f} s"
        if left:
            self._history.unfinished.append(f"{waited}, and {left:,} messages were not confirmed")
        else:
            self._history.unfinished.append(f"{waited}, and not all that was confirmed had come")

    async def _read_events(self) -> None:
        """What the broker tells of its buckets and disks, into the list of what was done."""
        if not self._target.is_ours:
            return
        kinds = ",".join(sorted(SHOWN_EVENTS))
        try:
            events = await ask(self._target, "GET", "/geminga/events", limit=200, kind=kinds)
        except RequestFailed:
            return
        self._history.add(told(events))


def told(events: Sequence[Mapping[str, Any]]) -> list[Doing]:
    """Events as notes; those of one kind that come shortly after each other are one note."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    notes: list[Doing] = []

    def end(kind: str) -> None:
        group = groups.pop(kind)
        # Of other kinds the counts are sums already.
        counted = group if kind.startswith("bucket-") else []
        messages = sum(event.get("counts", {}).get("messages", 0) for event in counted)
        of_messages = f", {messages:,} messages" if messages else ""
        times = f" {len(group)} times" if len(group) > 1 else ""
        why = group[0].get("text", "")[:80]
        text = f"{kind}{times}{of_messages}{': ' if why else ''}{why}"
        notes.append(Doing(group[0]["wall_ms"], text, "event"))

    for event in events:
        kind = event["kind"]
        if kind in groups and event["wall_ms"] - groups[kind][-1]["wall_ms"] > TOGETHER_MS:
            end(kind)
        groups.setdefault(kind, []).append(event)
    for kind in tuple(groups):
        end(kind)
    return notes


async def run_scenario(scenario: Scenario, target: Target, say: Callable[[str], None]) -> History:
    """See `Run.run`."""
    return await partial(Run, scenario, target, say)().run()
