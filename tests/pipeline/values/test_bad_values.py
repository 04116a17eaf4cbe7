"""What is read of values that are null, that are not of their schema, or that no column holds."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable
from typing import Any

import _pulsar
import fastavro
import pulsar
import pulsar.schema
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from geminga.pipeline.arrow.reading import read_topic
from geminga.pipeline.columns.columns import ColumnMaker
from geminga.pipeline.errors import Access, BadOption, PipelineError
from geminga.pipeline.topics.options import parse_options
from geminga.pipeline.topics.planning import plan_batch
from geminga.pipeline.topics.rows import read_range
from geminga.pipeline.topics.streaming import StreamPlan
from geminga.pipeline.values.avro_shapes import SchemaMismatch
from geminga.pipeline.values.decoding import ValueDecoder
from geminga.pipeline.values.schemas import schema_of, value_fields
from tests.e2e.admin_http import Admin, topic_path
from tests.pipeline.conftest import POLL_TIMEOUT_S, Topics

FIELDS: list[dict[str, Any]] = [
    {"name": "n", "type": "int"},
    {"name": "s", "type": "string"},
    {"name": "tags", "type": {"type": "array", "items": "string"}},
    {"name": "inner", "type": {"type": "record", "name": "In", "fields": [{"name": "x", "type": "double"}]}},
]
RECORD = {"type": "record", "name": "R", "fields": FIELDS}
ROW = {"n": 7, "s": "seven", "tags": ["a"], "inner": {"x": 0.5}}
NOTHING = dict.fromkeys(ROW)
LONG_MAX = 2**63 - 1
Send = Callable[..., str]
"""Registers a schema, sends payloads (None: a null message) and returns the topic."""


@pytest.fixture
def send(admin: Admin, client: pulsar.Client, topic: str) -> Send:
    def run(kind: str, definition: Any, *payloads: bytes | None, batched: bool = False) -> str:
        schema = {"type": kind, "schema": json.dumps(definition) if definition else "", "properties": {}}
        assert admin.post(schema_path(topic), schema).status == 200
        producer = client.create_producer(topic, batching_enabled=batched)
        for payload in payloads:
            producer.send_async(payload, lambda *_: None)
        producer.flush()
        return topic

    return run


def schema_path(topic: str) -> str:
    return f"/admin/v2/schemas/{topic_path(topic).partition('/')[2]}/schema"


def avro(value: Any, definition: Any = RECORD) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(definition), value)
    return buffer.getvalue()


def rows_of(topics: Topics, topic: str, *columns: str, **options: str) -> list[dict[str, Any]]:
    names = columns or ("n", "s", "tags", "inner")
    with read_topic(topics.endpoints.service_url, topic, columns=names, options=options) as reader:
        return reader.read_all().to_pylist()


@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
@pytest.mark.parametrize("batched", [False, True], ids=["single", "batched"])
def test_a_null_message_is_null_in_every_column(topics: Topics, send: Send, kind: str, batched: bool) -> None:
    good = avro(ROW) if kind == "AVRO" else json.dumps(ROW).encode()
    topic = send(kind, RECORD, good, None, good, batched=batched)
    assert rows_of(topics, topic) == [ROW, NOTHING, ROW]
    with read_topic(topics.endpoints.service_url, topic) as reader:
        table = reader.read_all()
    assert pc.sum(table["n"]).as_py() == 14
    assert table["n"].null_count == 1


def test_a_field_that_json_lacks_has_its_default(topics: Topics, send: Send) -> None:
    text = {"name": "b", "type": "string", "default": "dflt"}
    inner = {"type": "record", "name": "In", "fields": [{"name": "x", "type": "int", "default": 3}]}
    definition = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "a", "type": "int"},
            text,
            {"name": "n", "type": ["int", "null"], "default": 5},
            {"name": "raw", "type": "bytes", "default": "\u00ff"},
            {"name": "inner", "type": ["null", inner], "default": None},
            {"name": "none", "type": ["null", "string"]},
        ],
    }
    whole = {"a": 2, "b": "B", "n": 6, "raw": b"r", "inner": {"x": 4}, "none": "x"}
    lacks = {"a": 1, "b": "dflt", "n": 5, "raw": b"\xff", "inner": None, "none": None}
    payloads = (
        b'{"a":1}',
        b'{"a":2,"b":"B","n":6,"raw":"cg==","inner":{"x":4},"none":"x"}',
        b'{"a":1,"b":null,"n":null,"raw":null,"inner":{},"none":null}',
    )
    topic = send("JSON", definition, *payloads)
    null = dict.fromkeys(whole) | {"a": 1, "inner": {"x": 3}}
    assert rows_of(topics, topic, *whole) == [lacks, whole, null]


def test_a_default_is_told_from_null_by_the_compiled_reader_too(topics: Topics, send: Send) -> None:
    definition = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": ["string", "null"], "default": "d"}],
    }
    topic = send("JSON", definition, b'{"a":1,"b":"x"}', b'{"a":2}', b'{"a":3,"b":null}')
    assert [row["b"] for row in rows_of(topics, topic, "b")] == ["x", "d", None]


ONE_INT = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}
BAD = {
    "AVRO": (ONE_INT, [avro({"n": number}, ONE_INT) for number in range(5)], b"hello, I am text"),
    "JSON": (ONE_INT, [json.dumps({"n": number}).encode() for number in range(5)], b'{"n": "text"}'),
    "INT32": (None, [struct.pack(">i", number) for number in range(5)], b"\0\1"),
}


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("batched", [False, True], ids=["single", "batched"])
def test_bad_records_in_each_mode(topics: Topics, send: Send, kind: str, batched: bool) -> None:
    definition, good, bad = BAD[kind]
    sent = [good[0], bad, good[1], good[2], None, good[3], bad, good[4]]
    topic = send(kind, definition, *sent, batched=batched)
    name = "n" if definition else "value"

    def read(mode: str, *columns: str) -> list[Any]:
        found = rows_of(
            topics, topic, *(columns or (name,)), mode=mode, columnNameOfCorruptRecord="_corrupt_record"
        )
        return [tuple(row.values()) if len(row) > 1 else next(iter(row.values())) for row in found]

    ids = rows_of(topics, topic, "__ledgerId", "__entryId", "__batchIndex", rawValue="true")
    bad_id = ids[1]
    shown = f"{bad_id['__ledgerId']}:{bad_id['__entryId']}:{max(bad_id['__batchIndex'], 0)}"
    with pytest.raises(PipelineError, match=f"message {shown} is not what its schema says.*PERMISSIVE"):
        read("FAILFAST")
    assert read("PERMISSIVE") == [0, None, 1, 2, None, 3, None, 4]
    assert read("permissive", name, "_corrupt_record") == [
        (0, None), (None, bad), (1, None), (2, None), (None, None), (3, None), (None, bad), (4, None)
    ]  # fmt: skip
    assert read("DROPMALFORMED", name, "_corrupt_record") == [
        (0, None), (1, None), (2, None), (None, None), (3, None), (4, None)
    ]  # fmt: skip
    # As many rows whatever is asked for, with the metadata of their own messages.
    assert len(read("DROPMALFORMED", "__entryId")) == 6
    assert rows_of(topics, topic, "__ledgerId", "__entryId", "__batchIndex", mode="DROPMALFORMED") == [
        each for number, each in enumerate(ids) if number not in (1, 6)
    ]


def test_only_bad_records(topics: Topics, send: Send) -> None:
    topic = send("AVRO", RECORD, b"", b"\xff", b"text" * 9)
    assert rows_of(topics, topic, mode="PERMISSIVE") == [NOTHING] * 3
    assert rows_of(topics, topic, mode="DROPMALFORMED") == []


def test_bytes_behind_a_record_are_an_error(topics: Topics, send: Send) -> None:
    topic = send("AVRO", RECORD, avro(ROW), avro(ROW) + b"\0")
    with pytest.raises(PipelineError, match="bytes are left over behind it"):
        rows_of(topics, topic)


@pytest.mark.parametrize(("mode", "column"), [("lenient", "c"), ("PERMISSIVE", "__key")])
def test_options_of_bad_records_are_checked(topics: Topics, topic: str, mode: str, column: str) -> None:
    with pytest.raises(BadOption, match=r"permissive, dropmalformed, failfast|another column"):
        topics.options(topic, mode=mode, columnNameOfCorruptRecord=column)


TIMES = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "ms", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "us", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    ],
}
PLAIN = json.loads(json.dumps(TIMES).replace(', "logicalType"', ', "x"'))
FAR = [
    (253_402_300_800_000, 253_402_300_800_000_000, 2_932_897),
    (LONG_MAX, LONG_MAX, 2**31 - 1),
    (-LONG_MAX - 1, -LONG_MAX - 1, -(2**31)),
    (0, None, 0),
]
LAST_US = LONG_MAX // 1000 * 1000


@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
def test_times_beyond_the_year_9999(topics: Topics, send: Send, kind: str) -> None:
    """The first of each is the first moment of the year 10000, which a column holds and Python does not."""
    rows = [dict(zip(("ms", "us", "day"), far, strict=True)) for far in FAR]
    sent = [avro(row, PLAIN) if kind == "AVRO" else json.dumps(row).encode() for row in rows]
    topic = send(kind, TIMES, *sent)

    def read(**options: str) -> dict[str, list[Any]]:
        with read_topic(topics.endpoints.service_url, topic, options=options) as reader:
            table = reader.read_all()
        found = {name: table[name].cast(pa.int64()).to_pylist() for name in ("ms", "us")}
        return found | {"day": table["day"].cast(pa.int32()).to_pylist()}

    us, days = [far[1] for far in FAR], [far[2] for far in FAR]
    clamped = {"ms": [FAR[0][1], LAST_US, -LAST_US, 0], "us": us, "day": days}
    assert read() == clamped
    assert read(outOfRangeTimes="null") == clamped | {"ms": [FAR[0][1], None, None, 0]}
    with pytest.raises(PipelineError, match=f"a time of {LONG_MAX} milliseconds since 1970 is beyond"):
        read(outOfRangeTimes="error")
    assert read(outOfRangeTimes="error", mode="PERMISSIVE") == {
        "ms": [FAR[0][1], None, None, 0], "us": [us[0], None, None, None], "day": [days[0], None, None, 0]
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "layout", "far", "unit_us"),
    [
        ("TIMESTAMP", ">q", (LONG_MAX,), 1000),
        ("INSTANT", ">qi", (31_556_889_864_403_199, 999_999_999), 1_000_000),
        ("LOCAL_DATE_TIME", ">qq", (365_241_780_471, 86_399_999_999_999), 86_400_000_000),
    ],
)
def test_primitive_times_beyond_what_a_column_holds(
    topics: Topics, send: Send, kind: str, layout: str, far: tuple[int, ...], unit_us: int
) -> None:
    """Java's `Instant.MAX` and `LocalDateTime.MAX`."""
    near = (1, *(1000 for _ in far[1:]))
    topic = send(kind, None, struct.pack(layout, *near), struct.pack(layout, *far))

    def read(**options: str) -> list[int | None]:
        with read_topic(topics.endpoints.service_url, topic, columns="value", options=options) as reader:
            found: list[int | None] = reader.read_all()["value"].cast(pa.int64()).to_pylist()
        return found

    near_us = unit_us + len(far) - 1
    first, last = read()
    assert first == near_us
    assert last is not None
    assert LONG_MAX - unit_us <= last <= LONG_MAX
    assert read(outOfRangeTimes="null") == [near_us, None]


class Encoded(pulsar.schema.Schema):  # type: ignore[misc]
    """Of values that are bytes already."""

    def __init__(self, kind: str, definition: str) -> None:
        self._schema_info = _pulsar.SchemaInfo(_pulsar.SchemaType.__members__[kind], kind, definition)

    def encode(self, value: bytes) -> bytes:
        return value


@pytest.mark.parametrize(("kind", "other"), [("AVRO", "JSON"), ("JSON", "AVRO"), ("STRING", "JSON")])
def test_versions_of_another_kind_are_told(
    topics: Topics, admin: Admin, client: pulsar.Client, topic: str, kind: str, other: str
) -> None:
    """A topic whose schemas need not fit: each message says with which version it was written."""
    namespace = "/admin/v2/namespaces/public/any-schemas"
    assert admin.put(namespace, {}).status in (204, 409)
    path = f"{namespace}/schemaCompatibilityStrategy"
    topic = topic.replace("public/default", "public/any-schemas")
    assert admin.put(path, "ALWAYS_COMPATIBLE").status == 204
    sent = {"AVRO": avro({"n": 1}, ONE_INT), "JSON": b'{"n": 1}', "STRING": b"text"}
    for each in (other, kind):
        definition = "" if each == "STRING" else json.dumps(ONE_INT)
        body = {"type": each, "schema": definition, "properties": {}}
        assert admin.post(schema_path(topic), body).status == 200
        producer = client.create_producer(topic, schema=Encoded(each, definition), batching_enabled=False)
        producer.send(sent[each])
    column = "value" if kind == "STRING" else "n"
    told = f"messages have the schema {other} .version 0.*this query reads {kind}"
    with pytest.raises(PipelineError, match=told):
        rows_of(topics, topic, column)
    raw = rows_of(topics, topic, "value", rawValue="true")
    assert [row["value"] for row in raw] == [sent[other], sent[kind]]


def test_the_latest_version_is_not_asked_for_again(topics: Topics, client: pulsar.Client, topic: str) -> None:
    """A connection for each task would cost more than the task."""
    producer = client.create_producer(topic, schema=Encoded("JSON", json.dumps(ONE_INT)))
    producer.send(b'{"n": 1}')
    options = topics.options(topic)
    schema = schema_of(options.access, [topic])
    columns = pa.schema([*value_fields(schema).items(), ("__schemaVersion", pa.binary())])
    decoder = ValueDecoder(Access("pulsar://nowhere"), topic, schema, columns)
    [wanted] = plan_batch(options)
    maker = ColumnMaker(topic, columns, decoder)
    [batch] = read_range(options.access, wanted, maker, poll_timeout_s=POLL_TIMEOUT_S)
    assert batch.to_pylist() == [{"n": 1, "__schemaVersion": bytes(8)}]


@pytest.mark.parametrize("kind", ["JSON", "AVRO"])
def test_the_only_field_of_a_record_may_be_named_value(
    topics: Topics, client: pulsar.Client, topic: str, kind: str
) -> None:
    definition = {"type": "record", "name": "R", "fields": [{"name": "value", "type": "int"}]}
    producer = client.create_producer(topic, schema=Encoded(kind, json.dumps(definition)))
    producer.send(b'{"value": 7}' if kind == "JSON" else b"\x0e")
    assert [row["value"] for row in rows_of(topics, topic, "value")] == [7]


def test_a_topic_that_appears_under_a_pattern_is_compared(
    topics: Topics, client: pulsar.Client, topic: str
) -> None:
    """What was JSON was decoded as AVRO: 10 came as -62. A topic without messages waits until it has one."""

    def producer_of(name: str, kind: str) -> Any:
        return client.create_producer(f"{topic}-{name}", schema=Encoded(kind, json.dumps(ONE_INT)))

    producer_of("a", "AVRO").send(avro({"n": 1}, ONE_INT))
    pattern = f"{topic.removeprefix('persistent://')}-.*"
    given = {"service.url": topics.endpoints.service_url, "topicsPattern": pattern}
    for more, fails in (
        ({}, True),
        ({"allowDifferentTopicSchemas": "true"}, False),
        ({"rawValue": "true"}, False),
    ):
        options = parse_options(given | {"startingOffsets": "earliest"} | more)
        plan = StreamPlan(options, schema_of(options.access, [f"{topic}-a"]))
        try:
            start = plan.initial()
            producer_of("b", "AVRO").send(avro({"n": 2}, ONE_INT))
            later = producer_of("c", "JSON")
            assert plan.latest(start, limited=False)
            later.send(b'{"n": 10}')
            if fails:
                told = f"the schema of {topic}-c differs from that of {topic}-a.*allowDifferentTopicSchemas"
                with pytest.raises(SchemaMismatch, match=told):
                    plan.latest(start, limited=False)
            else:
                assert f"{topic}-c" in plan.latest(start, limited=False)
        finally:
            plan.close()
        later.close()
        assert Admin(topics.endpoints.web_url).delete(f"/admin/v2/{topic_path(f'{topic}-c')}").status == 204


@pytest.mark.parametrize("mode", ["permissive", "dropmalformed"])
def test_bad_values_that_are_known_are_not_searched_for(
    topics: Topics, send: Send, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    definition = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "u", "type": ["int", "string"]}, FIELDS[0]],
    }
    good, bad, worse = b"\x02\x02a\x0e", b"\x04", b"\x00"
    payloads = [good, bad, worse, good, *[bad] * 100, good] * 2
    topic = send("AVRO", definition, *payloads, batched=True)
    decodes = 0
    decoded = ValueDecoder._decoded

    def counted(decoder: ValueDecoder, messages: Any) -> Any:
        nonlocal decodes
        decodes += 1
        return decoded(decoder, messages)

    monkeypatch.setattr(ValueDecoder, "_decoded", counted)
    found = rows_of(topics, topic, "u", "n", mode=mode)
    row = {"u": {"member0": None, "member1": "a"}, "n": 7}
    expected = [row if each == good else {"u": None, "n": None} for each in payloads]
    assert found == (expected if mode == "permissive" else [row] * 6)
    assert decodes <= 20
