"""One run of a scenario, from the first topic to the last acknowledgement."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
import trio

from geminga.child_broker import BrokerFailed
from geminga.cli.admin.admin_http import RequestFailed
from geminga.cli.chaos.checking.history import Doing, History, Producing, Receiving, Subscription
from geminga.cli.chaos.checking.load_plan import planned
from geminga.cli.chaos.checking.scenario import InvalidScenario, Load, Scenario, Step
from geminga.cli.chaos.running.consuming import LoadConsumer
from geminga.cli.chaos.running.doing import Steps, length_text
from geminga.cli.chaos.running.probing import probe_forever
from geminga.cli.chaos.running.producing import LoadProducer, wall_ms
from geminga.cli.chaos.running.sampling import Part, left_behind, sample, sample_forever
from geminga.cli.chaos.running.target import StartRefused, Target, ask
from geminga.cli.client.errors import ClientError

NAMESPACE: Final = "public/chaos"
QUIET_SECONDS: Final = 0.5
"""So long after the last acknowledgement a run waits for what should not come."""
LOOK_SECONDS: Final = 0.05
LEFT_SECONDS_MAX: Final = 5.0
"""So long the broker's own counts may take to come to what the history says."""
MOVE_EVERY_SECONDS: Final = 0.2
WAIT_MS_MAX: Final = 600_000
"""The longest delay that a run waits for on a clock that cannot be moved."""
_NO_LETTER: Final = re.compile("[^A-Za-z0-9-]")
TOGETHER_MS: Final = 500
SHOWN_EVENTS: Final = frozenset(
    {"bucket-lost", "bucket-rebuilt", "caught-up", "disk-read-only", "disk-writable", "topic-fenced"}
)


class Run:
    """Use once. `history` has what was seen so far, also when `run` is broken off."""

    def __init__(self, scenario: Scenario, target: Target, say: Callable[[str], None]) -> None:
        """`say` gets a line of progress now and then."""
        self._scenario = scenario
        self._target = target
        self._say = say
        self.history = History(wall_ms())
        self._producers: list[LoadProducer] = []
        self._consumers: list[LoadConsumer] = []
        self._partitions = scenario.load.partitions
        self._held_up_s = scenario.holds_up_ms / 1000
        # A name of its own: a broker that runs already may have had this scenario before.
        mark = f"{_NO_LETTER.sub('-', scenario.name)[:100]}-{wall_ms():x}"
        self._topics = [f"persistent://{NAMESPACE}/{mark}-{n}" for n in range(scenario.load.topics)]
        self._steps = Steps(scenario, target, self.history, self._topics, self._burst, self._grow, self._look)

    async def run(self) -> None:
        """Raises `InvalidScenario` if this broker cannot run it; whatever else ends it is in the history."""
        load = self._scenario.load
        if not self._target.is_ours and load.delayed and load.delay[1] > WAIT_MS_MAX:
            raise InvalidScenario(
                f"{self._scenario.name}: its messages are delayed by up to {length_text(load.delay[1])}, and "
                f"the clock of this broker cannot be moved; copy it, and shorten load.delay"
            )
        history = self.history
        try:
            await self._prepare()
            await self._carry_out()
        except* (RequestFailed, ClientError, OSError) as group:
            history.broken.append(f"the run was broken off: {_first_text(group)}")
        except* StartRefused as group:
            history.broken.append(f"the broker refuses to start: {_first_text(group)}")
        except* BrokerFailed as group:
            text = f"the broker does not start again: {_first_text(group)}"
            history.doings.append(Doing(at_ms=wall_ms(), text=text, kind="dead"))
        finally:
            history.end(wall_ms())
        await self._read_events()
        await self._steps.faults.end()

    async def _carry_out(self) -> None:
        history = self.history
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(probe_forever, self._target, history)
            for place in range(len(self._topics)):
                for plan in self._scenario.consumers:
                    subscription = Subscription(topic=place, name=plan.subscription, type=plan.type)
                    history.subscriptions.append(Receiving(subscription, []))
            await self._consume(0)
            await self._look()
            nursery.start_soon(sample_forever, self._target, history, self._steps.faults)
            nursery.start_soon(self._watch)
            for topic in range(len(self._topics)):
                for _ in range(self._scenario.load.producers):
                    self._produce(topic, self._scenario.load)
            await self._steps.run()
            await self._drain()
            history.drained()
            await self._steps.faults.look()
            nursery.cancel_scope.cancel()

    async def _look(self) -> None:
        await sample(self._target, self.history)

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
            self.history.begin(shown["now_ms"] - wall_ms())

    # -- load ------------------------------------------------------------------------------------------------

    async def _consume(self, first: int) -> None:
        """Subscribe on all partitions from the `first` on."""
        plans = {plan.subscription: plan for plan in self._scenario.consumers}
        for place, (subscription, _) in enumerate(self.history.subscriptions):
            plan = plans[subscription.name]
            for _, part, name in self._parts(subscription.topic)[first:]:
                for _ in range(plan.count):
                    number = len(self._consumers)
                    consumer = LoadConsumer(
                        name, part, number, self._scenario.seed, plan, place, self.history, self._held_up_s
                    )
                    self._consumers.append(consumer)
                    await self._nursery.start(consumer.run, self._target.service_url)

    async def _grow(self, partitions: int) -> None:
        first, self._partitions = self._partitions, partitions
        await self._consume(first)

    def _parts(self, topic: int) -> list[Part]:
        name = self._topics[topic]
        parts = [Part(topic, n, f"{name}-partition-{n}") for n in range(self._partitions)]
        return parts or [Part(topic, -1, name)]

    def _produce(self, topic: int, load: Load) -> None:
        """A producer more. On a partitioned topic each has its own partition, in turns."""
        number = len(self.history.producers)
        parts = self._parts(topic)
        name = parts[number % len(parts)].name
        self.history.producers.append(Producing(topic=topic, name=f"p{number}"))
        sent = planned(load, self._scenario.seed, number)
        self.history.sent.append(sent)
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
            self._steps.faults.broker_ended()
            text = f"the broker ended by itself: {why}"
            self.history.doings.append(Doing(at_ms=wall_ms(), text=text, kind="ended"))
            await self._target.start_again()
            self.history.doings.append(Doing(at_ms=wall_ms(), text="started again", kind="started"))
            self._steps.faults.restarted()

    # -- the end ---------------------------------------------------------------------------------------------

    async def _drain(self) -> None:
        """Until all that was confirmed is acknowledged, and the broker says so too; or nothing moves for too
        long.
        """
        moved_s, before = trio.current_time(), (-1, -1)
        has_said_s = trio.current_time()
        is_moved = self._scenario.clock == "virtual" and self._target.is_ours
        while True:
            looked_s = trio.current_time()
            left = sum(producer.left for producer in self._producers)
            missing = await trio.to_thread.run_sync(self._missing)
            if (left, missing) != before:
                moved_s, before = trio.current_time(), (left, missing)
            if not left and not missing and all(consumer.is_idle for consumer in self._consumers):
                await trio.sleep(QUIET_SECONDS)
                await self._look_behind()
                return
            if trio.current_time() - moved_s > self._scenario.drain / 1000 + self._longest_wait_s():
                waited_s = trio.current_time() - moved_s
                what = f"{left:,} messages were not confirmed" if left else "not all was acknowledged"
                self.history.give_up(
                    f"nothing moved for {waited_s:.0f} s, and {what}", round(waited_s * 1000)
                )
                await self._look_behind(seconds=0)
                return
            if not left and is_moved and self._scenario.load.delayed:
                asked_s = trio.current_time()
                await self._steps.advance(self._scenario.load.delay[1] // 10 + 1)
                # A move takes what it takes; silence counts without it.
                moved_s += trio.current_time() - asked_s
            if trio.current_time() - has_said_s > 2:
                has_said_s = trio.current_time()
                self._say(f"{left:,} messages to confirm, {missing:,} to be acknowledged")
            # A look at a great many messages takes its time from the consumers.
            took_s = trio.current_time() - looked_s
            await trio.sleep(max(MOVE_EVERY_SECONDS if is_moved else LOOK_SECONDS, took_s))

    def _longest_wait_s(self) -> float:
        """How long nothing may move since delayed messages wait, on a clock that is not moved."""
        is_moved = self._scenario.clock == "virtual" and self._target.is_ours
        if is_moved or not self._scenario.load.delayed:
            return 0.0
        return self._scenario.load.delay[1] / 1000

    def _missing(self) -> int:
        """Confirmed messages that a subscription has not acknowledged (as far as it can tell) since it was
        set back, if it was.
        """
        history, missing = self.history, 0
        for subscription, deliveries in history.subscriptions:
            settled = {
                (one.producer, one.number)
                for one in deliveries
                if one.ack_ms and history.is_after_seeks(one) and not history.is_void(one)
            }
            for producing, sent in zip(history.producers, history.sent, strict=True):
                if producing.topic == subscription.topic:
                    missing += sum(
                        1
                        for one in sent
                        if one.receipt_ms
                        and (one.producer, one.number) not in settled
                        and not history.may_be_taken(one)
                    )
        return missing

    async def _look_behind(self, seconds: float = LEFT_SECONDS_MAX) -> None:
        """What the broker says is left, once that is nothing, or after this time."""
        parts = [part for topic in range(len(self._topics)) for part in self._parts(topic)]
        ends_s = trio.current_time() + seconds
        while True:
            try:
                self.history.left[:] = await left_behind(self._target, self.history, parts)
            except RequestFailed as error:
                self.history.broken.append(f"the broker's own counts at the end: {error}")
                return
            is_empty = not any(one.backlog or one.pending or one.delayed for one in self.history.left)
            if is_empty or trio.current_time() >= ends_s:
                return
            await trio.sleep(MOVE_EVERY_SECONDS)

    async def _read_events(self) -> None:
        """What the broker tells of its buckets and disks, into the list of what was done."""
        if not self._target.is_ours:
            return
        kinds = ",".join(sorted(SHOWN_EVENTS))
        try:
            events = await ask(self._target, "GET", "/geminga/events", limit=200, kind=kinds)
        except RequestFailed:
            return
        self.history.add(told(events))


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
        notes.append(Doing(at_ms=group[0]["wall_ms"], text=text, kind="event"))

    for event in events:
        kind = event["kind"]
        if kind in groups and event["wall_ms"] - groups[kind][-1]["wall_ms"] > TOGETHER_MS:
            end(kind)
        groups.setdefault(kind, []).append(event)
    for kind in tuple(groups):
        end(kind)
    return notes


def _first_text(group: BaseExceptionGroup[BaseException]) -> str:
    first = group.exceptions[0]
    return _first_text(first) if isinstance(first, BaseExceptionGroup) else str(first) or type(first).__name__
