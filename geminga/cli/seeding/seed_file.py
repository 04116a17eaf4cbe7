"""A seed as a file: TOML with tables of tenants, namespaces and topics, or one JSON object a line. Pure."""

from __future__ import annotations

import base64
import binascii
import tomllib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from geminga.errors import GemingaError, InvalidName
from geminga.names import NamespaceName, TopicName, check_tenant
from geminga.units import duration_ms

FILE_BYTES_MAX: Final = 64 << 20
REPEAT_MAX: Final = 1_000_000
PARTITIONS_MAX: Final = 10_000

Policies = Mapping[str, Any]
"""Bodies by the last part of the policy's path in the admin API, such as `messageTTL`."""


class SeedError(GemingaError):
    """The file and the place in it, what is wrong, and what was expected."""


class TenantSeed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str


class NamespaceSeed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    policies: dict[str, Any] = {}


class MessageSeed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    text: str | None = None
    json: Any = msgspec.UNSET
    base64: str | None = None
    key: str | None = None
    properties: dict[str, str] = {}
    delay: str | None = None
    event_time_ms: int | None = None
    repeat: int = 1


class TopicSeed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    partitions: int = 0
    policies: dict[str, Any] = {}
    subscriptions: list[str] = []
    messages: list[MessageSeed] = []


class _Tables(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tenants: list[TenantSeed] = []
    namespaces: list[NamespaceSeed] = []
    topics: list[TopicSeed] = []


class Message(NamedTuple):
    """To be published `repeat` times."""

    payload: bytes
    key: str | None
    properties: Mapping[str, str]
    delay_ms: int | None
    event_time_ms: int | None
    repeat: int


class Topic(NamedTuple):
    name: TopicName
    partitions: int
    """0: not partitioned."""
    policies: Policies
    subscriptions: tuple[str, ...]
    messages: tuple[Message, ...]


class Seed(NamedTuple):
    """What to create, in the order of the file; tenants of namespaces and namespaces of topics included."""

    tenants: tuple[str, ...]
    namespaces: tuple[tuple[NamespaceName, Policies], ...]
    topics: tuple[Topic, ...]

    @property
    def messages(self) -> int:
        return sum(message.repeat for topic in self.topics for message in topic.messages)


def parse_seed(name: str, content: bytes) -> Seed:
    """`name` ends with .toml or .jsonl. Raises SeedError."""
    if len(content) > FILE_BYTES_MAX:
        raise SeedError(f"{name}: larger than {FILE_BYTES_MAX >> 20} MiB; restore a snapshot instead")
    if name.endswith(".toml"):
        tables = _of_toml(name, content)
    elif name.endswith((".jsonl", ".ndjson")):
        tables = _of_lines(name, content)
    else:
        raise SeedError(f"{name}: expected a name that ends with .toml or .jsonl")
    try:
        tenants = dict.fromkeys(check_tenant(tenant.name) for tenant in tables.tenants)
    except InvalidName as error:
        raise SeedError(f"{name}: {error}") from None
    namespaces: dict[str, tuple[NamespaceName, Policies]] = {}
    for number, namespace in enumerate(tables.namespaces):
        parsed = _namespace(f"{name}: namespaces[{number}]", namespace.name)
        namespaces[str(parsed)] = parsed, namespace.policies
    topics = [_topic(f"{name}: topics[{number}]", topic) for number, topic in enumerate(tables.topics)]
    for topic in topics:
        namespaces.setdefault(str(topic.name.namespace), (topic.name.namespace, {}))
    for parsed, _ in namespaces.values():
        tenants.setdefault(parsed.tenant)
    return Seed(tuple(tenants), tuple(namespaces.values()), tuple(topics))


def _of_toml(name: str, content: bytes) -> _Tables:
    try:
        return msgspec.convert(tomllib.loads(content.decode()), _Tables)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError, msgspec.ValidationError) as error:
        raise SeedError(f"{name}: {error}") from None


def _of_lines(name: str, content: bytes) -> _Tables:
    """Each line is {"tenant": name}, {"namespace": name, ...}, {"topic": name, ...} or a message,
    {"to": topic, ...}.
    """
    tenants: list[TenantSeed] = []
    namespaces: list[NamespaceSeed] = []
    topics: dict[str, TopicSeed] = {}
    for number, line in enumerate(content.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            fields = msgspec.json.decode(line, type=dict[str, Any])
            if "to" in fields:
                to = fields.pop("to")
                message = msgspec.convert(fields, MessageSeed)
                topics.setdefault(to, TopicSeed(to)).messages.append(message)
            elif "topic" in fields:
                made = msgspec.convert({"name": fields.pop("topic"), **fields, "messages": []}, TopicSeed)
                if made.name in topics:
                    raise msgspec.ValidationError(f"{made.name} was named before; put its own line first")
                topics[made.name] = made
            elif "namespace" in fields:
                namespaces.append(msgspec.convert({"name": fields.pop("namespace"), **fields}, NamespaceSeed))
            elif "tenant" in fields:
                tenants.append(msgspec.convert({"name": fields.pop("tenant"), **fields}, TenantSeed))
            else:
                raise msgspec.ValidationError('expected a field "tenant", "namespace", "topic" or "to"')
        except (msgspec.MsgspecError, RecursionError, TypeError) as error:
            raise SeedError(f"{name}: line {number}: {error}") from None
    return _Tables(tenants, namespaces, list(topics.values()))


def _namespace(place: str, text: str) -> NamespaceName:
    try:
        return NamespaceName.parse(text)
    except InvalidName as error:
        raise SeedError(f"{place}: {error}") from None


def _topic(place: str, topic: TopicSeed) -> Topic:
    try:
        name = TopicName.parse(topic.name)
    except InvalidName as error:
        raise SeedError(f"{place}: {error}") from None
    if not 0 <= topic.partitions <= PARTITIONS_MAX:
        raise SeedError(f"{place}: partitions: expected 0 (not partitioned) to {PARTITIONS_MAX}")
    messages = [
        _message(f"{place}.messages[{number}]", message) for number, message in enumerate(topic.messages)
    ]
    return Topic(name, topic.partitions, topic.policies, tuple(topic.subscriptions), tuple(messages))


def _message(place: str, message: MessageSeed) -> Message:
    given = [message.text is not None, message.json is not msgspec.UNSET, message.base64 is not None]
    if sum(given) != 1:
        raise SeedError(f"{place}: expected one of text, json and base64")
    if not 1 <= message.repeat <= REPEAT_MAX:
        raise SeedError(f"{place}: repeat: expected 1 to {REPEAT_MAX}")
    if message.text is not None:
        payload = message.text.encode()
    elif message.base64 is not None:
        try:
            payload = base64.b64decode(message.base64, validate=True)
        except (binascii.Error, ValueError) as error:
            raise SeedError(f"{place}: base64: {error}") from None
    else:
        payload = msgspec.json.encode(message.json)
    delay_ms = None if message.delay is None else _delay_ms(place, message.delay)
    return Message(payload, message.key, message.properties, delay_ms, message.event_time_ms, message.repeat)


def _delay_ms(place: str, text: str) -> int:
    try:
        return duration_ms(text)
    except ValueError as error:
        raise SeedError(f"{place}: delay: {error}") from None
