"""The schemas of all topics: stored versions, and which one may be added."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from geminga.broker.schemas.checks import are_same, check_consumer, check_follows, validate
from geminga.broker.schemas.types import TopicSchema
from geminga.errors import BadVersion, IncompatibleSchema
from geminga.metadata import records
from geminga.metadata.records import SchemaRecord
from geminga.metadata.store import MUST_NOT_EXIST, Delete

if TYPE_CHECKING:
    from geminga.clock import Clock
    from geminga.metadata.store import MetadataStore
    from geminga.names import TopicName

VERSIONS_MAX: Final = 1000
"""The limit of versions of one topic. A client that exceeds it most likely creates a schema for each
message.
"""
DELETED: Final = TopicSchema("NONE", b"")


class StoredSchema(NamedTuple):
    version: int
    schema: TopicSchema
    created_ms: int
    is_deleted: bool
    """A mark: this version and all earlier ones do not count."""


class SchemaRegistry:
    """Reads answer from the metadata store, changes are durable on return. Partitions share their topic's."""

    def __init__(self, metadata: MetadataStore, clock: Clock) -> None:
        self._metadata = metadata
        self._clock = clock

    def versions(self, topic: TopicName) -> list[StoredSchema]:
        """The versions after the last deletion, the oldest first."""
        stored = self._all(topic)
        marks = [number for number, one in enumerate(stored) if one.is_deleted]
        return stored[marks[-1] + 1 :] if marks else stored

    def _all(self, topic: TopicName) -> list[StoredSchema]:
        parent = records.schemas_path(topic)
        found = []
        for child in self._metadata.children(parent):
            path = f"{parent}/{child}"
            stored = self._metadata.get(path)
            if stored is not None:
                record = records.decode(SchemaRecord, stored.value, path)
                schema = TopicSchema(record.type, record.data, record.properties)
                found.append(StoredSchema(int(child), schema, record.created_ms, record.deleted))
        return found

    def latest(self, topic: TopicName) -> StoredSchema | None:
        """The newest version, even if it is a mark."""
        stored = self._all(topic)
        return stored[-1] if stored else None

    def get(self, topic: TopicName, version: int) -> StoredSchema | None:
        return next((stored for stored in self.versions(topic) if stored.version == version), None)

    def find(self, topic: TopicName, schema: TopicSchema) -> StoredSchema | None:
        """The version with an equal schema; None if there is none."""
        return _find(self.versions(topic), schema)

    def has_schema(self, topic: TopicName) -> bool:
        return bool(self.versions(topic))

    async def add(
        self, topic: TopicName, schema: TopicSchema, strategy: str, *, may_change: bool = True
    ) -> int:
        """The version of this schema. A new schema is stored if it may follow the others by `strategy`.
        Raises IncompatibleSchema.
        """
        validate(schema)
        while True:
            known = self.versions(topic)
            same = _find(known, schema)
            if same is not None:
                return same.version
            if not may_change:
                raise IncompatibleSchema("Schema not found and schema auto updating is disabled.")
            check_follows([stored.schema for stored in known], schema, strategy)
            if len(known) >= VERSIONS_MAX:
                raise IncompatibleSchema(f"{topic} has {VERSIONS_MAX} schemas, as many as are kept")
            version = await self._store(topic, schema)
            if version is not None:
                return version

    async def _store(self, topic: TopicName, schema: TopicSchema, *, is_mark: bool = False) -> int | None:
        """Store the schema as the next version; None if another request stored one first."""
        latest = self.latest(topic)
        version = 0 if latest is None else latest.version + 1
        record = SchemaRecord(
            type=schema.type,
            data=schema.data,
            properties=dict(schema.properties),
            created_ms=self._clock.now_ms(),
            deleted=is_mark,
        )
        try:
            await self._metadata.put(
                records.schema_path(topic, version), records.encode(record), MUST_NOT_EXIST
            )
        except BadVersion:
            return None
        return version

    def check_addition(self, topic: TopicName, schema: TopicSchema, strategy: str) -> None:
        """Raise IncompatibleSchema where `add` would."""
        validate(schema)
        check_follows([stored.schema for stored in self.versions(topic)], schema, strategy)

    def check_consumer(self, topic: TopicName, schema: TopicSchema, strategy: str) -> None:
        """Raise IncompatibleSchema if a consumer with this schema may not read the topic, which has a
        schema.
        """
        validate(schema)
        check_consumer([stored.schema for stored in self.versions(topic)], schema, strategy)

    async def delete(self, topic: TopicName) -> int:
        """Delete all versions by a mark, and return the mark's version. The numbers are not used again."""
        while (version := await self._store(topic, DELETED, is_mark=True)) is None:
            pass
        return version

    async def forget(self, topic: TopicName) -> None:
        """Delete all records of the topic's schemas."""
        parent = records.schemas_path(topic)
        children = self._metadata.children(parent)
        if children:
            await self._metadata.transact([], [Delete(f"{parent}/{child}", None) for child in children])


def _find(known: Sequence[StoredSchema], schema: TopicSchema) -> StoredSchema | None:
    for stored in reversed(known):
        # Nearly every producer brings the newest as it is; no other need be parsed for it.
        if stored.schema.type == schema.type and stored.schema.data == schema.data:
            return stored
    return next((stored for stored in known if are_same(stored.schema, schema)), None)
