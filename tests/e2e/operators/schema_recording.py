"""What a real broker answers about schemas. The cases below are played against one, and its answers written
to `schema_recording.json` (CONTRIBUTING.md, "Recording what Pulsar does"), by

    python -m tests.e2e.operators.schema_recording pulsar://localhost:6650 http://localhost:8080

`test_e2e_schema_recording.py` plays them here.

A step is a list: what is done, then its arguments.

    produce SCHEMA                 PRODUCER, and close it         -> version | error
    hold SCHEMA                    PRODUCER that stays             -> version | error
    subscribe NAME SCHEMA          SUBSCRIBE, and close it         -> "ok" | error
    stay NAME SCHEMA               SUBSCRIBE that stays            -> "ok" | error
    register SCHEMA                GET_OR_CREATE_SCHEMA            -> version | error
    look [VERSION]                 GET_SCHEMA                      -> [schema, version] | error
    send                           a message by a producer without schema
    METHOD PATH [BODY]             REST; {S}, {T}, {N}: paths of schemas, topic, namespace   -> [status, body]

Schemas are named; versions are hexadecimal as they are on the wire.
"""

from __future__ import annotations

import base64
import html
import itertools
import json
import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet

from geminga.wire import pulsar_pb2 as pb
from tests.e2e.admin_http import Admin, Answer
from tests.e2e.binary_session import BinarySession, ConnectionEnded, message_bytes, plain_metadata
from tests.recordings.recording import Recording

SETTINGS = {  # all are defaults
    "allowAutoTopicCreation": "true",
    "allowAutoTopicCreationType": "non-partitioned",
    "brokerDeleteInactiveTopicsMode": "delete_when_no_subscriptions",
    "isAllowAutoUpdateSchemaEnabled": "true",
    "isSchemaValidationEnforced": "false",
    "schemaCompatibilityStrategy": "FULL",
    "systemTopicEnabled": "true",
    "topicLevelPoliciesEnabled": "true",
}
RECORDING = Recording(Path(__file__).with_name("schema_recording.json"), SETTINGS)
Step = list[Any]
SETTLING_S = 0.5
REASON_MAX = 80
"""Of what a server error says, which nobody should rely on."""
_T = pb.Schema.Type.Value


def record(*fields: Any, name: str = "R", **more: Any) -> str:
    return json.dumps({"type": "record", "name": name, "namespace": "n", "fields": list(fields), **more})


def field(name: str, kind: Any = "int", **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def key_value(key: tuple[str, str], value: tuple[str, str], encoding: str = "INLINE") -> tuple[Any, ...]:
    parts = b"".join(len(text).to_bytes(4, "big") + text.encode() for _, text in (key, value))
    properties = {"kv.encoding.type": encoding}
    for place, (kind, _) in (("key", key), ("value", value)):
        properties |= {
            f"{place}.schema.name": "",
            f"{place}.schema.type": kind,
            f"{place}.schema.properties": "{}",
        }
    return ("KeyValue", parts, properties)


ENUM = {"type": "enum", "name": "E", "symbols": ["X", "Y"]}
FIXED = {"type": "fixed", "name": "F", "size": 4}
INNER = {"type": "record", "name": "I", "fields": [field("x")]}
KINDS: dict[str, Any] = {
    "float": "float",
    "double": "double",
    "bytes": "bytes",
    "null": "null",
    "null or int": ["null", "int"],
    "int or null": ["int", "null"],
    "null or long": ["null", "long"],
    "string or long": ["string", "long"],
    "enum": ENUM,
    "smaller enum": {**ENUM, "symbols": ["X"]},
    "other enum": {**ENUM, "name": "D"},
    "fixed": FIXED,
    "larger fixed": {**FIXED, "size": 5},
    "other fixed": {**FIXED, "name": "G"},
    "ints": {"type": "array", "items": "int"},
    "longs": {"type": "array", "items": "long"},
    "map of int": {"type": "map", "values": "int"},
    "map of string": {"type": "map", "values": "string"},
    "inner": INNER,
    "inner of another name": {**INNER, "name": "J"},
    "inner with more": {**INNER, "fields": [field("x"), field("y")]},
    "null or inner": ["null", INNER],
    "null or inner of another name": ["null", {**INNER, "name": "J"}],
    "itself": ["null", "n.R"],
}
ONE = record(field("a"))
WITH_DEFAULT = record(field("a"), field("b", "string", default=""))


def native(root: str, *messages: str) -> str:
    file = FileDescriptorProto(
        name="a.proto", package="n", message_type=[DescriptorProto(name=name) for name in messages]
    )
    files = base64.b64encode(FileDescriptorSet(file=[file]).SerializeToString()).decode()
    return json.dumps(
        {"fileDescriptorSet": files, "rootMessageTypeName": root, "rootFileDescriptorName": "a.proto"}
    )


SCHEMAS: dict[str, tuple[Any, ...]] = {
    "one": ("Avro", ONE),
    "one spaced": ("Avro", ONE.replace(":", " :  ")),
    "one documented": ("Avro", record(field("a", doc="x"), doc="y", aliases=["Q"])),
    "one with a property": ("Avro", ONE, {"p": "q"}),
    "one with an attribute": ("Avro", record(field("a", note="x"))),
    "with default": ("Avro", WITH_DEFAULT),
    "without default": ("Avro", record(field("a"), field("b", "string"))),
    "more default": ("Avro", record(field("a"), field("c", "string", default=""))),
    "other record": ("Avro", record(field("a"), name="Q")),
    "long": ("Avro", record(field("a", "long"))),
    "string": ("Avro", record(field("a", "string"))),
    "empty record": ("Avro", record()),
    **{name: ("Avro", record(field("a", kind))) for name, kind in KINDS.items()},
    "by alias": ("Avro", record(field("z", aliases=["a"], default=0))),
    "json one": ("Json", ONE),
    "json with default": ("Json", WITH_DEFAULT),
    "json without default": ("Json", record(field("a"), field("b", "string"))),
    "old json": ("Json", '{"type":"object","id":"urn:x","properties":{"a":{"type":"integer"}}}'),
    "other old json": ("Json", '{"type":"object","id":"urn:x","properties":{"b":{"type":"integer"}}}'),
    "protobuf": ("Protobuf", ONE),
    "bad avro": ("Avro", "{nope"),
    "bad type": ("Avro", '{"type":"nothing"}'),
    "no data": ("Avro", ""),
    "bad json": ("Json", "nope"),
    "avro string": ("Avro", '"string"'),
    "native": ("ProtobufNative", native("n.A", "A")),
    "native more": ("ProtobufNative", native("n.A", "A", "C")),
    "native other": ("ProtobufNative", native("n.B", "A", "B")),
    "native bad": ("ProtobufNative", "{}"),
    "none": ("None", ""),
    "text": ("String", ""),
    "text with data": ("String", "x"),
    "int8": ("Int8", ""),
    "int32": ("Int32", ""),
    "int32 with data": ("Int32", "x"),
    "instant": ("Instant", ""),
    "auto consume": ("AutoConsume", ""),
    "kv": key_value(("STRING", ""), ("AVRO", ONE)),
    "kv separated": key_value(("STRING", ""), ("AVRO", ONE), "SEPARATED"),
    "kv with default": key_value(("STRING", ""), ("AVRO", WITH_DEFAULT)),
    "kv without default": key_value(("STRING", ""), ("AVRO", record(field("a"), field("b", "string")))),
    "kv other key": key_value(("INT32", ""), ("AVRO", ONE)),
    "kv bad": ("KeyValue", b"\0\0", {}),
    "": (),
}
STRATEGIES = (
    "ALWAYS_INCOMPATIBLE",
    "ALWAYS_COMPATIBLE",
    "BACKWARD",
    "FORWARD",
    "FULL",
    "BACKWARD_TRANSITIVE",
    "FORWARD_TRANSITIVE",
    "FULL_TRANSITIVE",
)


def body(name: str) -> dict[str, Any]:
    """A schema as the REST API takes it."""
    kind, data, *properties = SCHEMAS[name]
    words = {"KeyValue": "KEY_VALUE", "ProtobufNative": "PROTOBUF_NATIVE"}
    text = data.decode("latin1") if isinstance(data, bytes) else data
    return {"type": words.get(kind, kind.upper()), "schema": text, "properties": dict(*properties)}


def strategy(name: str) -> Step:
    return ["PUT", "{N}/schemaCompatibilityStrategy", name]


CASES: dict[str, list[Step]] = {
    "versions": [
        ["look"],
        ["GET", "{S}/schema"],
        ["GET", "{S}/schemas"],
        ["produce", "one"],
        ["look"],
        ["look", "0000000000000000"],
        ["look", "0000000000000001"],
        ["look", ""],
        ["look", "00"],
        ["produce", "with default"],
        ["produce", "one"],
        ["register", "with default"],
        ["look"],
        ["look", "0000000000000000"],
        ["GET", "{S}/schema"],
        ["GET", "{S}/schema/0"],
        ["GET", "{S}/schema/1"],
        ["GET", "{S}/schema/2"],
        ["GET", "{S}/schema/x"],
        ["GET", "{S}/schema/-1"],
        ["GET", "{S}/schemas"],
        ["POST", "{S}/version", body("one")],
        ["POST", "{S}/version", body("with default")],
        ["POST", "{S}/version", body("long")],
    ],
    "the same schema in other words": [
        ["produce", "one"],
        ["produce", "one spaced"],
        ["produce", "one documented"],
        ["produce", "one with a property"],
        ["produce", "one with an attribute"],
        ["GET", "{S}/schemas"],
    ],
    **{
        f"strategy {name}": [
            strategy(name),
            ["produce", "one"],
            *(
                ["POST", "{S}/compatibility", body(other)]
                for other in ("with default", "without default", "long")
            ),
            ["produce", "with default"],
            ["produce", "without default"],
            ["produce", "more default"],
            ["produce", "other record"],
            ["produce", "long"],
            ["produce", "string"],
            ["produce", "empty record"],
            ["produce", "one"],
            ["subscribe", "s", "one"],
            ["subscribe", "s", "long"],
            ["subscribe", "s", "empty record"],
            ["subscribe", "s", "without default"],
            ["subscribe", "s", "text"],
            ["produce", "text"],
            ["produce", ""],
            ["GET", "{S}/schemas"],
        ]
        for name in STRATEGIES
    },
    **{
        f"json {name}": [
            strategy(name),
            ["produce", "json one"],
            ["produce", "json with default"],
            ["produce", "json without default"],
            ["produce", "old json"],
            ["produce", "other old json"],
            ["produce", "one"],
            ["produce", "bad json"],
        ]
        for name in ("FULL", "BACKWARD", "ALWAYS_INCOMPATIBLE", "ALWAYS_COMPATIBLE")
    },
    **{
        f"after {first}": [
            strategy("BACKWARD"),
            ["produce", first],
            *(
                ["POST", "{S}/compatibility", body(other)]
                for other in ("one", "long", "string", "by alias", *KINDS)
            ),
        ]
        for first in ("one", "long", "string", "by alias", *KINDS)
    },
    "old json first": [["produce", "old json"], ["produce", "other old json"], ["produce", "json one"]],
    "bad schemas": [
        ["produce", "bad avro"],
        ["produce", "bad type"],
        ["produce", "no data"],
        ["produce", "bad json"],
        ["produce", "avro string"],
        ["register", "bad avro"],
        ["subscribe", "s", "bad avro"],
        ["produce", "text with data"],
        ["produce", "int32 with data"],
        ["produce", "auto consume"],
        ["produce", "kv bad"],
        ["POST", "{S}/schema", body("bad avro")],
        ["POST", "{S}/schema", {"type": "NOTHING", "schema": ""}],
        ["POST", "{S}/schema", {}],
        ["POST", "{S}/schema", None],
        ["POST", "{S}/compatibility", body("bad avro")],
        ["look"],
    ],
    "primitives": [
        ["produce", "int32"],
        ["look"],
        ["produce", "int32"],
        ["produce", "int8"],
        ["produce", "instant"],
        ["subscribe", "s", "int32"],
        ["subscribe", "s", "int8"],
        ["subscribe", "s", "text"],
        ["subscribe", "s", "none"],
        ["subscribe", "s", ""],
        ["produce", "none"],
        ["GET", "{S}/schemas"],
    ],
    "none first": [
        ["produce", "none"],
        ["look"],
        ["produce", "text"],
        ["produce", "none"],
        ["produce", "one"],
        ["look"],
    ],
    "text first": [
        ["produce", "text"],
        ["produce", "text with data"],
        ["produce", "one"],
        ["subscribe", "s", "text"],
    ],
    "native protobuf": [
        ["produce", "native bad"],
        ["produce", "native"],
        ["look"],
        ["produce", "native more"],
        ["produce", "native other"],
        ["subscribe", "s", "native"],
        ["subscribe", "s", "native other"],
        ["produce", "protobuf"],
        ["GET", "{S}/schema"],
    ],
    "protobuf": [["produce", "protobuf"], ["look"], ["produce", "one"]],
    "key and value": [
        ["produce", "kv"],
        ["look"],
        ["produce", "kv"],
        ["produce", "kv separated"],
        ["produce", "kv with default"],
        ["produce", "kv without default"],
        ["produce", "kv other key"],
        ["subscribe", "s", "kv"],
        ["subscribe", "s", "kv separated"],
        ["subscribe", "s", "kv other key"],
        ["GET", "{S}/schema"],
        ["GET", "{S}/schemas"],
        ["produce", "one"],
    ],
    "consumers first": [
        ["subscribe", "s", "one"],
        ["look"],
        ["subscribe", "s", "with default"],
        ["look"],
        ["subscribe", "s", "auto consume"],
        ["produce", "with default"],
        ["subscribe", "s", "auto consume"],
    ],
    "a topic with messages and without a schema": [
        ["send"],
        ["subscribe", "s", "one"],
        ["subscribe", "s", "auto consume"],
        ["subscribe", "s", ""],
        ["produce", "one"],
        ["subscribe", "s", "one"],
    ],
    "a topic with a consumer and without a schema": [
        ["stay", "s", ""],
        ["subscribe", "t", "one"],
        ["produce", "one"],
        ["subscribe", "t", "one"],
    ],
    "a topic with a producer and without a schema": [
        ["hold", ""],
        ["subscribe", "t", "one"],
        ["produce", "one"],
        ["subscribe", "t", "one"],
    ],
    "validation": [
        ["produce", "one"],
        ["POST", "{N}/schemaValidationEnforced", True],
        ["produce", ""],
        ["produce", "one"],
        ["produce", "none"],
        ["subscribe", "s", ""],
        ["POST", "{N}/schemaValidationEnforced", False],
        ["produce", ""],
        ["POST", "{T}/schemaValidationEnforced", True],
        ["produce", ""],
    ],
    "no automatic update": [
        ["GET", "{N}/isAllowAutoUpdateSchema"],
        ["produce", "one"],
        ["POST", "{N}/isAllowAutoUpdateSchema", False],
        ["GET", "{N}/isAllowAutoUpdateSchema"],
        ["produce", "one"],
        ["produce", "with default"],
        ["register", "with default"],
        ["subscribe", "s", "with default"],
        ["POST", "{S}/schema", body("with default")],
        ["produce", "with default"],
        ["POST", "{N}/isAllowAutoUpdateSchema", "x"],
        ["POST", "{N}/isAllowAutoUpdateSchema", True],
        ["produce", "more default"],
    ],
    "administration": [
        ["POST", "{S}/schema", body("one")],
        ["GET", "{S}/schema"],
        ["POST", "{S}/schema", body("one")],
        ["POST", "{S}/schema", body("without default")],
        ["POST", "{S}/schema", body("with default")],
        ["POST", "{S}/schema", body("text")],
        ["POST", "{S}/schema", {**body("more default"), "properties": {"k": "v"}}],
        ["GET", "{S}/schema"],
        ["POST", "{S}/compatibility", body("with default")],
        ["POST", "{S}/compatibility", body("string")],
        ["POST", "{S}/version", body("more default")],
        ["produce", "without default"],
        ["produce", "with default"],
    ],
    "deletion": [
        ["DELETE", "{S}/schema"],
        ["produce", "one"],
        ["produce", "with default"],
        ["DELETE", "{S}/schema"],
        ["look"],
        ["look", "0000000000000000"],
        ["look", "0000000000000002"],
        ["GET", "{S}/schema"],
        ["GET", "{S}/schema/0"],
        ["GET", "{S}/schema/2"],
        ["GET", "{S}/schemas"],
        ["DELETE", "{S}/schema"],
        ["POST", "{S}/compatibility", body("string")],
        ["produce", "string"],
        ["look"],
        ["GET", "{S}/schemas"],
        ["produce", "one"],
        ["DELETE", "{S}/schema?force=true"],
        ["look"],
        ["GET", "{S}/schemas"],
        ["produce", "long"],
        ["look"],
    ],
    "deletion of the topic": [
        ["produce", "one"],
        ["DELETE", "{T}"],
        ["look"],
        ["register", "long"],
        ["produce", "long"],
        ["look"],
    ],
    "strategy of a topic": [
        ["produce", "one"],
        ["PUT", "{T}/schemaCompatibilityStrategy", "ALWAYS_COMPATIBLE"],
        ["produce", "string"],
        ["PUT", "{T}/schemaCompatibilityStrategy", "ALWAYS_INCOMPATIBLE"],
        ["produce", "one"],
        ["produce", "long"],
        ["produce", "string"],
    ],
    "changed types": [
        strategy("ALWAYS_COMPATIBLE"),
        ["produce", "one"],
        ["produce", "text"],
        ["produce", "json one"],
        ["produce", "kv"],
        ["look"],
        ["subscribe", "s", "one"],
        ["subscribe", "s", "kv"],
    ],
    "nothing there": [
        ["GET", "/admin/v2/schemas/public/default/not-there/schema"],
        ["GET", "/admin/v2/schemas/public/default/not-there/schemas"],
        ["DELETE", "{S}-not-there/schema"],
        ["POST", "/admin/v2/schemas/public/default/not-there/compatibility", body("one")],
        ["POST", "/admin/v2/schemas/public/default/not-there/version", body("one")],
        ["GET", "/admin/v2/schemas/public/not-there/t/schema"],
        ["POST", "/admin/v2/schemas/public/not-there/t/schema", body("one")],
        ["GET", "/admin/v2/schemas/not-there/x/t/schema"],
    ],
}


class Player:
    """One case: a namespace and a topic of its own on the broker that is asked."""

    _numbers = itertools.count(1)

    def __init__(self, service_url: str, web_url: str, prefix: str, settling_s: float) -> None:
        self._settling_s = settling_s
        parts = urlsplit(service_url)
        self._address = (parts.hostname or "localhost", parts.port or 6650)
        self.admin = Admin(web_url)
        self.namespace = f"public/{prefix}-{next(self._numbers)}"
        self.topic = f"persistent://{self.namespace}/t"
        self.admin.put(f"/admin/v2/namespaces/{self.namespace}")
        self.session = BinarySession(self._address)
        self.session.connect()
        # Some brokers serve nothing that nobody has looked up.
        self._ask(pb.CommandLookupTopic(topic=self.topic, request_id=self.session.next_request_id()))
        self._ids = itertools.count(1)

    def play(self, step: Step) -> Any:
        kind, *rest = step
        if kind.isupper():
            return self._rest(kind, *rest)
        return self._told(getattr(self, "_" + kind)(*rest))

    def _told(self, answer: Any) -> Any:
        """What does not depend on names and times."""
        text = json.dumps(answer)
        text = text.replace(self.topic, "TOPIC").replace(f"{self.namespace}/t", "ID")
        text = text.replace(self.namespace, "NAMESPACE")
        text = re.sub(r'"timestamp": \d{12,}', '"timestamp": 1', text)
        return json.loads(text)

    def _rest(self, method: str, path: str, *content: Any) -> Any:
        path = path.replace("{S}", f"/admin/v2/schemas/{self.namespace}/t")
        path = path.replace("{T}", f"/admin/v2/persistent/{self.namespace}/t")
        path = path.replace("{N}", f"/admin/v2/namespaces/{self.namespace}")
        answer = self.admin.request(method, path, *content)
        if method != "GET" and "/schemas/" not in path:
            time.sleep(self._settling_s)  # noqa: TID251 - only while recording: it tells nobody when
        return self._told([answer.status, _plain(answer)])

    def _ask(self, command: Any) -> Any:
        self.session.send(command)
        try:
            received = self.session.receive(8.0).command
        except (ConnectionEnded, TimeoutError) as ended:
            self.session.close()
            self.session = BinarySession(self._address)
            self.session.connect()
            return "closed" if isinstance(ended, ConnectionEnded) else "no answer"
        if isinstance(received, pb.CommandError):
            return ["error", int(received.error), received.message]
        return received

    @staticmethod
    def _schema(name: str) -> dict[str, pb.Schema]:
        if not SCHEMAS[name]:
            return {}
        kind, data, *properties = SCHEMAS[name]
        data = data if isinstance(data, bytes) else data.encode()
        pairs = [pb.KeyValue(key=key, value=value) for key, value in dict(*properties).items()]
        return {"schema": pb.Schema(name="t", schema_data=data, type=_T(kind), properties=pairs)}

    def _hold(self, schema: str) -> Any:
        return self._produce(schema, closes=False)

    def _produce(self, schema: str, *, closes: bool = True) -> Any:
        producer_id = next(self._ids)
        answer = self._ask(
            pb.CommandProducer(
                topic=self.topic,
                producer_id=producer_id,
                request_id=self.session.next_request_id(),
                **self._schema(schema),
            )
        )
        if not isinstance(answer, pb.CommandProducerSuccess):
            return answer
        if closes:
            request_id = self.session.next_request_id()
            self._ask(pb.CommandCloseProducer(producer_id=producer_id, request_id=request_id))
        return answer.schema_version.hex()

    def _stay(self, name: str, schema: str) -> Any:
        return self._subscribe(name, schema, closes=False)

    def _subscribe(self, name: str, schema: str, *, closes: bool = True) -> Any:
        consumer_id = next(self._ids)
        answer = self._ask(
            pb.CommandSubscribe(
                topic=self.topic,
                subscription=name,
                subType=pb.CommandSubscribe.Shared,
                consumer_id=consumer_id,
                request_id=self.session.next_request_id(),
                **self._schema(schema),
            )
        )
        if not isinstance(answer, pb.CommandSuccess):
            return answer
        if closes:
            request_id = self.session.next_request_id()
            self._ask(pb.CommandCloseConsumer(consumer_id=consumer_id, request_id=request_id))
        return "ok"

    def _register(self, schema: str) -> Any:
        answer = self._ask(
            pb.CommandGetOrCreateSchema(
                request_id=self.session.next_request_id(), topic=self.topic, **self._schema(schema)
            )
        )
        if not isinstance(answer, pb.CommandGetOrCreateSchemaResponse):
            return answer
        if not answer.HasField("error_code"):
            return answer.schema_version.hex()
        return ["error", int(answer.error_code), answer.error_message]

    def _look(self, *version: str) -> Any:
        command = pb.CommandGetSchema(request_id=self.session.next_request_id(), topic=self.topic)
        if version:
            command.schema_version = bytes.fromhex(version[0])
        answer = self._ask(command)
        if not isinstance(answer, pb.CommandGetSchemaResponse):
            return answer
        if answer.HasField("error_code"):
            return ["error", int(answer.error_code), answer.error_message]
        found = answer.schema
        shown = {
            "name": found.name,
            "type": pb.Schema.Type.Name(found.type),
            "data": found.schema_data.decode("latin1"),
            "properties": {pair.key: pair.value for pair in found.properties},
        }
        return [shown, answer.schema_version.hex()]

    def _send(self) -> Any:
        producer_id = next(self._ids)
        request_id = self.session.next_request_id()
        self._ask(pb.CommandProducer(topic=self.topic, producer_id=producer_id, request_id=request_id))
        self.session.send(
            pb.CommandSend(producer_id=producer_id, sequence_id=0), message_bytes(plain_metadata(), b"x")
        )
        self.session.expect(pb.CommandSendReceipt)
        request_id = self.session.next_request_id()
        self._ask(pb.CommandCloseProducer(producer_id=producer_id, request_id=request_id))
        return "ok"


def _plain(answer: Answer) -> Any:
    """Its JSON; of a page of HTML, a text or a stack trace the words that say what is wrong."""
    if title := re.search(r"<title>Error \d+ (.*?)</title>", answer.text, re.DOTALL):
        return {"reason": html.unescape(title[1])}
    try:
        shown = answer.json()
    except ValueError:
        return {"reason": answer.text.partition("\n")[0]} if answer.text else ""
    if isinstance(shown, dict) and "reason" in shown:
        trace = re.search(r"\nMessage: (.*?)\n\nStacktrace", shown["reason"], re.DOTALL)
        return {"reason": trace[1][:REASON_MAX] if trace else shown["reason"]}
    return shown


def play_case(
    name: str, service_url: str, web_url: str, prefix: str, *, settling_s: float = 0.0
) -> list[Any]:
    player = Player(service_url, web_url, prefix, settling_s)
    try:
        return [player.play(step) for step in CASES[name]]
    finally:
        player.session.close()


def play(service_url: str, web_url: str, names: list[str]) -> dict[str, list[Any]]:
    prefix = f"schemas-{os.getpid()}"
    play_case("nothing there", service_url, web_url, f"{prefix}-warm-up")
    played = {}
    for name in names:
        played[name] = play_case(name, service_url, web_url, prefix, settling_s=SETTLING_S)
        print(name, file=sys.stderr)
    return played


def main(arguments: Sequence[str] | None = None) -> None:
    RECORDING.main(list(CASES), play, arguments)


if __name__ == "__main__":
    main()
