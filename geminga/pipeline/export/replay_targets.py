"""Where exported topics go: names, partitions, subscriptions and schemas made ready before a row is sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fastcrc.crc32 import iscsi as crc_32c

from geminga.names import NamespaceName, TopicName
from geminga.pipeline.client.admin_http import create_partitions
from geminga.pipeline.client.connection import Connection
from geminga.pipeline.client.last_message import last_of
from geminga.pipeline.client.owning_brokers import OwningBrokers
from geminga.pipeline.client.producing import Producer
from geminga.pipeline.client.topics import full_name, partitions_of
from geminga.pipeline.errors import (
    ADMIN_URL,
    Access,
    AdminRefused,
    Option,
    PipelineError,
    Refused,
    TopicMissing,
)
from geminga.pipeline.export.manifest import ExportedTopic, Manifest
from geminga.pipeline.topics.acknowledging import Subscriptions
from geminga.pipeline.values.schemas import TopicSchema
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.encoder import frame

_SEND_TIMEOUT_S = 20.0
_BY_KEY = Option("by_key", "True")


@dataclass(frozen=True)
class Wanted:
    """What a user says of where messages go."""

    access: Access
    admin_url: str | None = None
    rename: Mapping[str, str] = field(default_factory=dict)
    """Of topics; those that are not named keep their names, or are all that is replayed if `only`."""
    only: Sequence[str] = ()
    """Topics of the export; empty: all."""
    namespace: str | None = None
    """Instead of that of the source."""
    subscriptions: Sequence[str] = ()
    """Made before the first message, so that they hold all of them."""
    by_key: bool = False
    """Choose partitions by key instead of keeping them."""
    append: bool = False
    """Write to topics that hold messages already."""
    schemas: bool = True


@dataclass(frozen=True)
class Target:
    """Of one exported topic."""

    source: str
    topic: str
    parts: tuple[str, ...]
    """Its partitions; itself if it has none."""
    by_key: bool
    versions: Mapping[bytes, bytes] = field(default_factory=dict)
    """Schema versions of the source and what they are called here."""

    def of(self, part: str) -> tuple[str, ...]:
        """Where the messages of a source partition may go."""
        index = full_name(part).partition_index
        return self.parts if self.by_key or index < 0 else (self.parts[index],)


def prepare(manifest: Manifest, wanted: Wanted, producer_prefix: str) -> dict[str, Target]:
    """By exported topic. Everything that can be refused is refused here, before anything is sent.

    Raises `PipelineError`.
    """
    only = {str(full_name(topic)) for topic in wanted.only} or set(manifest.topics)
    for topic in only | {str(full_name(topic)) for topic in wanted.rename}:
        if topic not in manifest.topics:
            raise PipelineError(f"{topic} is not in this export; it holds {', '.join(manifest.topics)}")
    rename = {str(full_name(old)): str(full_name(new)) for old, new in wanted.rename.items()}
    found: dict[str, Target] = {}
    with Connection.open(wanted.access) as connection:
        for topic, exported in manifest.topics.items():
            if topic in only:
                name = rename.get(topic) or _moved(topic, wanted.namespace)
                found[topic] = _target(connection, wanted, topic, name, exported.partitions)
    for topic, target in found.items():
        if not wanted.append:
            _check_fresh(wanted.access, target, producer_prefix, manifest.topics[topic].partitions)
    for topic, target in found.items():
        _make_ready(wanted, target)
        if wanted.schemas and manifest.topics[topic].schemas:
            found[topic] = replace(target, versions=_put_schemas(wanted, target, manifest.topics[topic]))
    return found


def _moved(topic: str, namespace: str | None) -> str:
    if namespace is None:
        return topic
    name = TopicName.parse(topic)
    return str(TopicName(name.domain, NamespaceName.parse(namespace), name.local))


def _target(connection: Connection, wanted: Wanted, source: str, name: str, partitions: int) -> Target:
    """`partitions`: what the source had; 0: none."""
    is_there = True
    try:
        parts = partitions_of(connection, name)
    except TopicMissing:
        is_there, parts = False, [name]
    there = 0 if parts == [name] else len(parts)
    # Older brokers say of a missing topic that it has no partitions, so the admin API is asked for that, too.
    if there == 0 and partitions and not (is_there and wanted.by_key):
        if wanted.admin_url is not None:
            if _create(wanted.access, wanted.admin_url, name, partitions):
                parts = [str(full_name(name).partition(index)) for index in range(partitions)]
                there = partitions
        elif not is_there and not wanted.by_key:
            raise PipelineError(
                f"{name} needs {partitions} partitions: create it (pulsar-admin topics "
                f"create-partitioned-topic {name} --partitions {partitions}), name the admin API "
                "(",
                ADMIN_URL,
                ") so that it is created, or let keys choose (",
                _BY_KEY,
                ")",
            )
    if there != partitions and not wanted.by_key:
        raise PipelineError(
            f"{name} has {there or 'no'} partitions, the exported topic {partitions or 'none'}: name "
            "a topic with as many, or let keys choose (",
            _BY_KEY,
            ")",
        )
    return Target(source, name, tuple(parts), wanted.by_key)


def _create(access: Access, admin_url: str, name: str, partitions: int) -> bool:
    """Whether the topic was made; False: one of this name is there."""
    try:
        create_partitions(access, admin_url, name, partitions)
    except AdminRefused as error:
        if error.status != 409:
            raise
        return False
    return True


def _check_fresh(access: Access, target: Target, producer_prefix: str, partitions: int) -> None:
    """Unless it is this very replay that filled it, and the broker knows how far it was."""
    source = full_name(target.source)
    sources = [str(source.partition(index)) for index in range(partitions)] or [str(source)]
    for part in target.parts:
        try:
            last = last_of(access, part)
        except TopicMissing:
            continue
        if last.message_id is None:
            continue
        if not any(_is_known(access, part, producer_name(producer_prefix, one)) for one in sources):
            raise PipelineError(
                f"{part} holds messages already, up to {last.message_id}: name another topic, or append to "
                "it (",
                Option("append", "True"),
                "). If a replay failed there whose broker does not deduplicate, delete "
                "the topic and begin again, or appending will store its messages twice",
            )


def producer_name(prefix: str, source: str) -> str:
    """Of what comes from this partition of the source: two that go to one topic must not share a name."""
    return f"{prefix}-{crc_32c(source.encode()):08x}"


def _is_known(access: Access, part: str, name: str) -> bool:
    producer = _producer(access, part, name)
    producer.close()
    return producer.last_sequence_id >= 0


def _producer(access: Access, part: str, name: str | None) -> Producer:
    return Producer(access, part, name, pending_max=1, send_timeout_s=_SEND_TIMEOUT_S)


def _make_ready(wanted: Wanted, target: Target) -> None:
    for part in target.parts:
        _producer(wanted.access, part, None).close()  # makes the topic, and shows that it may be written to
    brokers = OwningBrokers(wanted.access)
    try:
        for subscription in wanted.subscriptions:
            Subscriptions(brokers, dict.fromkeys(target.parts, subscription).__getitem__).open(target.parts)
    finally:
        brokers.close()


def _put_schemas(wanted: Wanted, target: Target, exported: ExportedTopic) -> dict[bytes, bytes]:
    found = {}
    with Connection.open(wanted.access) as connection:
        for version, schema in exported.schemas:
            try:
                found[version] = _put_schema(connection, target.parts[0], schema)
            except Refused as error:
                raise PipelineError(
                    f"{target.topic}: schema version {int.from_bytes(version, 'big')} cannot be registered: ",
                    error,
                    ". Name another topic, or replay without schemas (",
                    Option("schemas", "False"),
                    ")",
                ) from None
    return found


def _put_schema(connection: Connection, topic: str, schema: TopicSchema) -> bytes:
    def build(number: int) -> bytes:
        given = pb.Schema(
            name=full_name(topic).partitioned_name.local,
            schema_data=schema.definition,
            type=pb.Schema.Type.ValueType(schema.kind or 0),  # type: ignore[arg-type]
        )
        for key, value in schema.properties.items():
            given.properties.add(key=key, value=value)
        command = pb.CommandGetOrCreateSchema(request_id=number, topic=topic, schema=given)
        kind = pb.BaseCommand.Type.GET_OR_CREATE_SCHEMA
        return frame(pb.BaseCommand(type=kind, getOrCreateSchema=command))

    return bytes(connection.request(build).schema_version)
