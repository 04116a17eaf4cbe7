"""The values of messages, by the version of the schema that each message names."""

from __future__ import annotations

from typing import Any, NamedTuple

from geminga.cli.client.client import Client
from geminga.cli.client.errors import ClientError
from geminga.cli.client.message import Message
from geminga.cli.payloads import schemas
from geminga.cli.payloads.errors import CannotDecode
from geminga.cli.payloads.schemas import Schema


class Decoded(NamedTuple):
    """A message and what it says."""

    topic: str
    message: Message
    value: Any
    """Bytes where there is no schema; None where the message has no value."""
    schema: Schema | None = None
    problem: str = ""
    """Why the value is bytes although there is a schema, or why they are as they came."""

    @property
    def schema_version(self) -> int | None:
        return int.from_bytes(self.message.schema_version, "big") if self.message.schema_version else None


class Values:
    """Asks for each version of a schema once. `is_raw`: values stay bytes."""

    def __init__(self, client: Client, *, is_raw: bool) -> None:
        self._client = client
        self._is_raw = is_raw
        self._known: dict[tuple[str, bytes], Schema | None] = {}

    async def decoded(self, topic: str, message: Message) -> Decoded:
        if message.is_null:
            return Decoded(topic, message, None)
        if message.problem or self._is_raw or not message.schema_version:
            return Decoded(topic, message, message.payload, problem=message.problem)
        try:
            schema = await self._schema(topic, message.schema_version)
            if schema is None:
                return Decoded(topic, message, message.payload)
            return Decoded(
                topic, message, schemas.decoded(schema, message.payload, message.key_bytes), schema
            )
        except (CannotDecode, ClientError) as error:
            return Decoded(topic, message, message.payload, problem=str(error))

    async def _schema(self, topic: str, version: bytes) -> Schema | None:
        if (topic, version) not in self._known:
            found = await self._client.schema(topic, version)
            self._known[topic, version] = None if found is None else schemas.from_wire(found)
        return self._known[topic, version]
