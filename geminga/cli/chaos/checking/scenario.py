"""A scenario: a short TOML file that says what is sent, what goes wrong meanwhile, and what must hold."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, get_args

import msgspec

from geminga.chaos.rules.places import PLACES
from geminga.chaos.rules.rule import InvalidRule, parse_rule
from geminga.chaos.rules.rule_file import fields_of
from geminga.errors import GemingaError
from geminga.units import DURATION_FORMS, duration_ms

MESSAGES_MAX: Final = 10_000_000
LENGTH_MS_MAX: Final = 1 << 53
SPAN_OF_DELAYS: Final = 'expected the shortest and the longest delay, such as ["1s", "10s"]'

SubscriptionType = Literal["Exclusive", "Failover", "Shared", "Key_Shared"]
Action = Literal[
    "fault",
    "clear",
    "kill",
    "stop",
    "pause",
    "advance",
    "unload",
    "expire",
    "seek",
    "grow",
    "burst",
    "copy",
    "restore",
    "remove",
]
Files = Literal["", "index", "journal", "entry-log"]
OPERATORS: Final = frozenset({"copy", "restore", "remove"})
"""Steps that change files of the broker, as an operator may by mistake."""
Count = Annotated[int, msgspec.Meta(ge=0, le=MESSAGES_MAX)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=MESSAGES_MAX)]
Few = Annotated[int, msgspec.Meta(ge=1, le=1000)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class InvalidScenario(GemingaError):
    """The text says which field is wrong, and what it may have."""


class Duration(int):
    """Milliseconds."""


class Load(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    topics: Few = 1
    partitions: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0
    """0: topics without partitions."""
    producers: Few = 1
    """For each topic."""
    messages: Positive = 1000
    """Of each producer."""
    rate: Count = 0
    """Messages per second of each producer; 0: as fast as receipts come."""
    bytes: Annotated[int, msgspec.Meta(ge=16, le=4_000_000)] = 64
    keys: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    """Different keys; 0: messages without a key."""
    delayed: Share = 0.0
    """The share of messages with a delay."""
    delay: list[Duration] = []
    """Between these two, drawn by the seed."""
    pending: Few = 500
    """Messages without a receipt that a producer has under way."""


class Consumers(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The consumers of one subscription, on each topic."""

    subscription: str
    type: SubscriptionType = "Shared"
    count: Few = 1
    queue: Few = 200
    nack: Share = 0.0
    """The share of first deliveries that a consumer asks to get again."""
    work: Duration = Duration(0)
    """How long a consumer works on a message."""
    leaves_every: Duration = Duration(0)
    """How often a consumer closes and comes back; 0: it stays."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happens at a time of the run."""

    do: Action
    at: Duration = Duration(0)
    """After the load has begun."""
    length: Duration = Duration(0)
    """Of `pause` and `advance`."""
    messages: Count = 0
    """Of `burst`, from each of its producers."""
    producers: Few = 1
    """Of `burst`, for each topic."""
    delayed: Share = 0.0
    """Of `burst`: the share with a delay."""
    partitions: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0
    """Of `grow`: how many each topic has then."""
    stopped: bool = False
    """Of `copy`, `restore` and `remove`: the broker stops in order before."""
    files: Files = ""
    """Of `remove`."""
    rule: dict[str, Any] = {}
    """Of `fault`: the fields of a rule."""
    needs_hits: Count = 0
    """Of `fault`: the run shows nothing if it took effect less often."""


_TAKES: Final[dict[str, frozenset[str]]] = {
    "fault": frozenset({"needs_hits"}),
    "pause": frozenset({"length"}),
    "advance": frozenset({"length"}),
    "burst": frozenset({"messages", "producers", "delayed"}),
    "grow": frozenset({"partitions"}),
    "copy": frozenset({"stopped"}),
    "restore": frozenset({"stopped"}),
    "remove": frozenset({"stopped", "files"}),
}
"""The fields of each action beside `do` and `at`; a `fault` has those of its rule, too."""


class Expect(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What makes a run a failure: more than this."""

    lost: int = 0
    doubled: int = 0
    uncaused: int = 0
    unasked: int = 0
    out_of_order: int = 0
    two_at_a_key: int = 0
    out_of_turn: int = 0
    early: int = 0
    damaged: int = 0
    unknown: int = 0
    miscounted: int = 0
    unanswered: int = 0
    left_behind: int = 0
    clock: int = 0
    stored_twice: int | None = None
    """None: any number, as without deduplication."""
    early_by: Duration = Duration(0)
    """What is early by up to this does not count."""
    late: Duration | None = None
    """The latest delayed message; None: no bound."""
    p99: Duration | None = None
    """How late 99 of 100 delayed messages are at most."""
    prompt: Duration | None = None
    """How long after its receipt 99 of 100 messages without a delay are delivered."""
    receipt: Duration | None = None
    """How long after they were sent the receipts of 99 of 100 messages come."""
    broker_ends: bool = False
    """Whether the broker may end by itself, as on a broken disk."""


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    text: str = ""
    threads: list[str] = []
    """Threads of apache/pulsar about the defect that this is about."""
    seed: int = 1
    clock: Literal["real", "virtual"] = "real"
    broker: dict[str, str] = {}
    """Settings of broker.conf."""
    ttl: Duration = Duration(0)
    """The namespace's TTL; 0: none."""
    load: Load = Load()
    consumers: list[Consumers] = []
    steps: list[Step] = []
    expect: Expect = Expect()
    drain: Duration = Duration(30_000)
    """How long the end waits without any progress."""

    @property
    def holds_up_ms(self) -> int:
        """For how long its steps may hold the broker up, or an answer, at a time."""
        return max(
            (
                step.length
                if step.do == "pause"
                else step.rule.get("latencyMs", 0) + step.rule.get("jitterMs", 0)
                for step in self.steps
            ),
            default=0,
        )

    def scaled(self, factor: float, seed: int | None, pace: float = 1.0) -> Scenario:
        """With so many times the messages, with another seed unless it is None, and at another pace: steps
        come so many times sooner, and rates are so many times higher; on a real clock delays are shorter.
        """

        def sooner(at_ms: int) -> Duration:
            return Duration(round(at_ms / pace))

        is_real = self.clock == "real"
        load = msgspec.structs.replace(
            self.load,
            messages=min(MESSAGES_MAX, max(1, round(self.load.messages * factor))),
            rate=round(self.load.rate * pace),
            delay=[sooner(at_ms) for at_ms in self.load.delay] if is_real else self.load.delay,
        )
        steps = [
            msgspec.structs.replace(
                step,
                at=sooner(step.at),
                length=step.length if step.do == "advance" else sooner(step.length),
                messages=max(1, round(step.messages * factor)) if step.messages else 0,
                rule={
                    name: sooner(value) if name == "durationMs" else value
                    for name, value in step.rule.items()
                },
            )
            for step in self.steps
        ]
        return msgspec.structs.replace(self, load=load, steps=steps, seed=self.seed if seed is None else seed)

    def with_seed(self, seed: int) -> Scenario:
        return msgspec.structs.replace(self, seed=seed)

    def with_slack(self, factor: float) -> Scenario:
        """With so many times the bounds of how late messages may be, and of how long nothing may move."""

        def longer(length_ms: Duration | None) -> Duration | None:
            return None if length_ms is None else Duration(round(length_ms * factor))

        expect = msgspec.structs.replace(
            self.expect,
            late=longer(self.expect.late),
            p99=longer(self.expect.p99),
            prompt=longer(self.expect.prompt),
            receipt=longer(self.expect.receipt),
        )
        return msgspec.structs.replace(
            self, expect=expect, drain=Duration(round(self.drain * max(1, factor)))
        )


def parse_scenario(text: str, name: str) -> Scenario:
    """A scenario from its file's text. Raises `InvalidScenario`."""
    try:
        fields = tomllib.loads(text)
        _check_blocks(fields)
        fields["steps"] = [_step(step) for step in fields.get("steps", [])]
        fields["broker"] = {key: _setting(value) for key, value in fields.get("broker", {}).items()}
        _check_names(fields)
        found = msgspec.convert({"name": name, **fields}, Scenario, dec_hook=_decoded)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, AttributeError, TypeError) as error:
        raise InvalidScenario(f"{name}: {error}{_known(str(error))}") from None
    _check(found)
    return found


def of_builtins(fields: Mapping[str, Any]) -> Scenario:
    """A scenario from a history: its fields as they are, durations in ms. Raises `InvalidScenario`."""
    try:
        return msgspec.convert(fields, Scenario, dec_hook=_told)
    except (msgspec.ValidationError, TypeError) as error:
        raise InvalidScenario(str(error)) from None


def _decoded(kind: type, value: object) -> object:
    if kind is Duration and isinstance(value, str):
        return Duration(duration_ms(value))
    raise TypeError(f"{value!r}: expected a duration as text, such as {DURATION_FORMS}")


def _told(kind: type, value: object) -> object:
    if kind is Duration and isinstance(value, int) and 0 <= value <= LENGTH_MS_MAX:
        return Duration(value)
    raise TypeError(f"{value!r:.60}: expected milliseconds")


def _known(text: str) -> str:
    """What there is where an error names a field or a word that there is not."""
    words = {
        "load": Load.__struct_fields__,
        "consumers": Consumers.__struct_fields__,
        "expect": Expect.__struct_fields__,
        "type": get_args(SubscriptionType),
        "do": get_args(Action),
        "files": get_args(Files)[1:],
        "clock": ("real", "virtual"),
    }
    found = re.search(r"(?:unknown field|enum value).* - at `.*?(\w+)(?:\[\d+\])?`$", text)
    return f"; there are {', '.join(words[found[1]])}" if found and found[1] in words else ""


def _step(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a fault's rule stand beside those of its step, so that a file is short."""
    do = str(fields.get("do"))
    if do not in get_args(Action):
        return dict(fields)
    takes = {"do", "at"} | _TAKES.get(do, frozenset())
    own = {name: value for name, value in fields.items() if name in takes}
    rest = {name: value for name, value in fields.items() if name not in takes}
    if rest and do != "fault":
        raise TypeError(f"steps: {do!r} takes no {', '.join(sorted(rest))}")
    if do == "fault":
        try:
            own["rule"] = _rule(rest)
        except (ValueError, InvalidRule) as error:
            raise TypeError(f"steps: {rest.get('fault', 'fault')}: {error}") from None
    return own


def _rule(written: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a fault's rule, which a broker accepts. Raises ValueError or InvalidRule."""
    rule = fields_of(written)
    kind = PLACES.get(rule["place"], {}).get(rule["kind"])
    named: dict[str, Any] = {}
    if kind is not None and "topic" not in rule:
        # The run names its own topics and subscriptions.
        named = dict.fromkeys(kind.needs & {"topic", "subscription"}, "s")
    parse_rule(named | rule)
    return rule


def _setting(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check_names(fields: Mapping[str, Any]) -> None:
    unknown = sorted(fields.keys() - set(Scenario.__struct_fields__))
    if unknown:
        raise TypeError(f"there is no {unknown[0]!r}; there are {', '.join(Scenario.__struct_fields__)}")


def _check_blocks(fields: Mapping[str, Any]) -> None:
    for name in ("consumers", "steps"):
        if isinstance(fields.get(name), Mapping):
            raise TypeError(f"{name}: begin each of them with [[{name}]], also where there is one only")
    load = fields.get("load")
    if isinstance(load, Mapping) and not isinstance(load.get("delay", []), list):
        raise TypeError(f"load.delay: {SPAN_OF_DELAYS}")


def _check(scenario: Scenario) -> None:
    def refuse(text: str) -> None:
        raise InvalidScenario(f"{scenario.name}: {text}")

    load = scenario.load
    if not scenario.consumers:
        refuse("consumers: expected at least one [[consumers]] with a subscription")
    names = [consumers.subscription for consumers in scenario.consumers]
    if len(set(names)) < len(names):
        refuse("consumers: each [[consumers]] needs a subscription of its own")
    if load.delayed and (len(load.delay) != 2 or load.delay[0] > load.delay[1]):
        refuse(f"load.delay: {SPAN_OF_DELAYS}")
    for consumers in scenario.consumers:
        if consumers.type == "Exclusive" and consumers.count > 1:
            refuse(f"consumers: {consumers.subscription}: an Exclusive subscription has one consumer")
        if consumers.nack and consumers.type in {"Exclusive", "Failover"}:
            refuse(f"consumers: {consumers.subscription}: nack needs type Shared or Key_Shared")
    for step in scenario.steps:
        if step.do in {"advance", "pause"} and not step.length:
            refuse(f'steps: {step.do} needs a length, such as length = "2s"')
        if step.do == "advance" and scenario.clock == "real":
            refuse('steps: advance needs clock = "virtual"')
        if step.do == "grow" and not 0 < load.partitions < step.partitions:
            refuse("steps: grow needs load.partitions, and more partitions than that")
        if step.do == "burst" and not step.messages:
            refuse("steps: burst needs messages")
        if step.do == "restore" and not any(one.do == "copy" and one.at < step.at for one in scenario.steps):
            refuse("steps: restore needs a copy before it")
        if step.do == "remove" and not step.files:
            refuse('steps: remove needs files = "index", "journal" or "entry-log"')
        if step.do == "remove" and step.stopped and step.files != "index":
            # No process has them open then, and what only they had is gone.
            refuse(f"steps: what is gone with the {step.files} files of a stopped broker cannot be judged")
