"""The schemas of topics, as Pulsar's admin API shows and changes them."""

from __future__ import annotations

from typing import Any

from geminga.admin.http.router import BadRequest, NotFound, Request, Response, Router, json_response
from geminga.admin.routes.names import topic_of
from geminga.broker.policies.namespaces import Namespaces
from geminga.broker.policies.policies import Policies
from geminga.broker.schemas.registry import SchemaRegistry, StoredSchema
from geminga.broker.schemas.types import KNOWN, TopicSchema, data_from_text, text_of
from geminga.errors import IncompatibleSchema, NamespaceNotFound

SCHEMAS = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"
NO_VERSION = -1


class SchemaRoutes:
    """A topic need not be there, as in Pulsar: a schema may be prepared for one."""

    def __init__(self, namespaces: Namespaces, policies: Policies, schemas: SchemaRegistry) -> None:
        self._namespaces = namespaces
        self._policies = policies
        self._schemas = schemas

    def add_to(self, router: Router) -> None:
        router.add("GET", f"{SCHEMAS}/schema", self.latest)
        router.add("GET", f"{SCHEMAS}/metadata", self.metadata)
        router.add("GET", f"{SCHEMAS}/schema/{{version}}", self.version)
        router.add("GET", f"{SCHEMAS}/schemas", self.versions)
        router.add("POST", f"{SCHEMAS}/schema", self.add)
        router.add("DELETE", f"{SCHEMAS}/schema", self.delete)
        router.add("POST", f"{SCHEMAS}/compatibility", self.check)
        router.add("POST", f"{SCHEMAS}/version", self.find)

    async def latest(self, request: Request) -> Response:
        stored = self._schemas.latest(topic_of(request))
        if stored is None or stored.is_deleted:
            raise NotFound("Schema not found")
        return json_response(_shown(stored))

    async def metadata(self, request: Request) -> Response:
        """Where Pulsar keeps each version: here they are records of the metadata store and in no ledger."""
        places = [
            {"ledgerId": -1, "entryId": -1, "version": stored.version}
            for stored in self._schemas.versions(topic_of(request))
        ]
        return json_response({"info": places[-1], "index": places}) if places else Response(200)

    async def version(self, request: Request) -> Response:
        text = request.parameters["version"]
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
            raise BadRequest(f"{text!r} is not the number of a version")
        stored = self._schemas.get(topic_of(request), int(text))
        if stored is None:
            raise NotFound("Schema not found")
        return json_response(_shown(stored))

    async def versions(self, request: Request) -> Response:
        stored = self._schemas.versions(topic_of(request))
        return json_response({"getSchemaResponses": [_shown(one) for one in stored]})

    async def add(self, request: Request) -> Response:
        """An operator may change what producers may not: `isAllowAutoUpdateSchema` is theirs."""
        topic = topic_of(request)
        self._check_namespace(request)
        schema = _schema_of(request)
        strategy = self._policies.effective(topic).schema_compatibility
        version = await self._schemas.add(topic, schema, strategy)
        return json_response({"version": {"version": version}})

    async def delete(self, request: Request) -> Response:
        topic = topic_of(request)
        self._check_namespace(request)
        if request.flag("force"):
            await self._schemas.forget(topic)
            return json_response({"version": NO_VERSION})
        return json_response({"version": await self._schemas.delete(topic)})

    async def check(self, request: Request) -> Response:
        topic = topic_of(request)
        schema = _schema_of(request)
        strategy = self._policies.effective(topic).schema_compatibility
        try:
            self._schemas.check_addition(topic, schema, strategy)
        except IncompatibleSchema:
            is_compatible = False
        else:
            is_compatible = True
        return json_response(
            {"schemaCompatibilityStrategy": strategy, "compatibility": is_compatible}, status=202
        )

    async def find(self, request: Request) -> Response:
        stored = self._schemas.find(topic_of(request), _schema_of(request))
        return json_response({"version": NO_VERSION if stored is None else stored.version})

    def _check_namespace(self, request: Request) -> None:
        try:
            self._namespaces.check_exists(topic_of(request).namespace)
        except NamespaceNotFound:
            raise NamespaceNotFound("Namespace does not exist") from None


def _shown(stored: StoredSchema) -> dict[str, Any]:
    schema = stored.schema
    return {
        "version": stored.version,
        "type": schema.type,
        "timestamp": stored.created_ms,
        "data": text_of(schema),
        "properties": dict(schema.properties),
    }


def _schema_of(request: Request) -> TopicSchema:
    body = request.json()
    if not isinstance(body, dict):
        raise BadRequest("expected a schema: an object with type, schema and properties")
    kind, text, properties = body.get("type"), body.get("schema"), body.get("properties") or {}
    if not isinstance(kind, str) or kind not in KNOWN:
        raise BadRequest(f"{kind!r} is no type of schema")
    if not isinstance(text, str):
        raise BadRequest("the schema's definition is missing: it is a text, empty for primitive types")
    if not isinstance(properties, dict) or not all(isinstance(value, str) for value in properties.values()):
        raise BadRequest("the properties of a schema are texts")
    return TopicSchema(kind, data_from_text(kind, text), properties)
