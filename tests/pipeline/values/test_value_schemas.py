"""DataFrames whose columns are the value: the schema that is registered, and that values come back."""

from __future__ import annotations

import base64
import datetime as dt
import io
import json
from decimal import Decimal
from typing import Any

import fastavro
import pulsar
import pulsar.schema
import pyarrow as pa
import pytest

from geminga.pipeline.client.producing import Producer
from geminga.pipeline.columns.columns import ColumnMaker
from geminga.pipeline.columns.encoding import send_frame
from geminga.pipeline.errors import PipelineError
from geminga.pipeline.topics.planning import plan_batch
from geminga.pipeline.topics.rows import read_range
from geminga.pipeline.values.avro_shapes import TIME, shape_of
from geminga.pipeline.values.avro_writing import BadColumns, _avro_row_by_row, avro_rows, record_definition
from geminga.pipeline.values.decoding import ValueDecoder, json_values
from geminga.pipeline.values.json_writing import json_rows
from geminga.pipeline.values.schemas import schema_of, value_fields
from geminga.pipeline.values.value_encoding import value_encoder
from geminga.pipeline.writing.task_writer import Task, TaskWriter
from geminga.wire import pulsar_pb2 as pb
from tests.e2e.admin_http import Admin
from tests.pipeline.conftest import POLL_TIMEOUT_S, Topics

AT = dt.datetime(2024, 5, 6, 7, 8, 9, 123_456, tzinfo=dt.UTC)
LONG_AGO = dt.datetime(1901, 2, 3, tzinfo=dt.UTC)
INNER = pa.struct([("x", pa.float64()), ("tags", pa.list_(pa.string()))])
COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("small", pa.int16()),
        ("name", pa.string()),
        ("raw", pa.binary()),
        ("at", TIME),
        ("day", pa.date32()),
        ("price", pa.decimal128(10, 2)),
        ("inner", INNER),
        ("sizes", pa.map_(pa.string(), pa.int32())),
        ("all", pa.list_(INNER)),
        ("ok", pa.bool_()),
    ]
)
INNER_ROW = {"x": 0.5, "tags": ["a", None, "ü\n"]}
ROWS: list[dict[str, Any]] = [
    {"id": 1, "small": -2, "name": "n\"'", "raw": b"\0\xff", "at": AT, "day": AT.date(),
     "price": Decimal("-12.50"), "inner": INNER_ROW, "sizes": [("a", 1), ("b", None)],
     "all": [INNER_ROW, None], "ok": True},
    {"id": 2} | {name: None for name in COLUMNS.names if name != "id"},
    {"id": -(1 << 60), "small": 0, "name": "", "raw": b"", "at": AT, "day": AT.date(),
     "price": Decimal("0.00"), "inner": {"x": None, "tags": []}, "sizes": [], "all": [], "ok": False},
]  # fmt: skip


def typed(topics: Topics, topic: str) -> tuple[dict[str, pa.DataType], list[dict[str, Any]]]:
    """The columns that a topic's values have, and the rows."""
    options = topics.options(topic)
    values = schema_of(options.access, [topic])
    fields = value_fields(values)
    columns = pa.schema(list(fields.items()))
    found: list[dict[str, Any]] = []
    for wanted in plan_batch(options):
        decoder = None if values.is_raw else ValueDecoder(options.access, wanted.topic, values, columns)
        maker = ColumnMaker(wanted.topic, columns, decoder)
        for batch in read_range(options.access, wanted, maker, poll_timeout_s=POLL_TIMEOUT_S):
            found += batch.to_pylist()
    return fields, found


def write(topics: Topics, topic: str, batch: pa.RecordBatch, **options: str) -> None:
    writer = TaskWriter(topics.options(topic, **options), Task("test", 0, 0), batch.schema)
    try:
        writer.write([batch])
    finally:
        writer.close()


def test_the_definition_is_that_of_the_jvm_connector() -> None:
    columns = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            ("price", pa.decimal128(10, 2)),
            ("inner", pa.struct([("at", TIME)])),
        ]
    )
    schema = value_encoder(columns, "auto").schema
    assert schema is not None
    assert (schema.type, schema.name) == (pb.Schema.Type.Avro, "Avro")
    assert schema.schema_data.decode() == (
        '{"type":"record","name":"topLevelRecord","fields":[{"name":"id","type":"long"},{"name":"price","type":'
        '[{"type":"fixed","name":"fixed","namespace":"topLevelRecord.price","size":5,"logicalType":"decimal",'
        '"precision":10,"scale":2},"null"]},{"name":"inner","type":[{"type":"record","name":"inner","namespace":'
        '"topLevelRecord","fields":[{"name":"at","type":[{"type":"long","logicalType":"timestamp-micros"},"null"]}'
        ']},"null"]}]}'
    )


def test_json_rows_are_read_back() -> None:
    batch = pa.RecordBatch.from_pylist(ROWS, schema=COLUMNS)
    shape = shape_of(record_definition(COLUMNS))
    rows = json_rows(batch)
    assert json_values(rows, shape.arrow, shape).to_pylist() == ROWS
    json.loads(rows[0].as_py())
    odd = pa.RecordBatch.from_pydict({"f": [float("nan"), float("inf"), 1e300]})
    assert json_rows(odd).to_pylist() == [b'{"f":"NaN"}', b'{"f":"Infinity"}', b'{"f":1e+300}']


FAR = 1 << 62
"""Microseconds: in a year that Python's times do not have."""


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
@pytest.mark.parametrize("times", [1, 40])
def test_times_are_written_as_the_numbers_that_the_definition_names(zone: str | None, times: int) -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "t": pa.array([0, FAR, None, -FAR] * times, pa.timestamp("us", zone)),
            "d": pa.array([0, 1 << 30, None, -(1 << 30)] * times, pa.date32()),
        }
    )
    found = json_rows(batch).to_pylist()
    assert found[:4] == [
        b'{"t":0,"d":0}',
        b'{"t":4611686018427387904,"d":1073741824}',
        b'{"t":null,"d":null}',
        b'{"t":-4611686018427387904,"d":-1073741824}',
    ]
    definition = record_definition(batch.schema)
    assert avro_rows(batch, definition) == _avro_row_by_row(batch, definition)


def test_names_of_fields_are_those_of_java() -> None:
    assert record_definition(pa.schema([("Straße", pa.int32()), ("ж٣", pa.int32())]))["fields"]
    for name in ("", "1x", "a-b", "x.y", "٣"):
        with pytest.raises(BadColumns, match="letters, digits and _ only, and none that begins"):
            record_definition(pa.schema([(name, pa.int32())]))


@pytest.mark.parametrize("value_schema", ["auto", "json"])
def test_columns_are_a_record_that_comes_back(topics: Topics, topic: str, value_schema: str) -> None:
    batch = pa.RecordBatch.from_pylist(ROWS, schema=COLUMNS)
    write(topics, topic, batch, valueSchema=value_schema)
    fields, rows = typed(topics, topic)
    assert fields == {field.name: field.type for field in COLUMNS if field.name != "small"} | {
        "small": pa.int32()
    }
    assert rows == ROWS
    kinds = {"auto": pb.Schema.Type.Avro, "json": pb.Schema.Type.Json}
    assert schema_of(topics.options(topic).access, [topic]).kind == kinds[value_schema]
    write(topics, topic, batch.slice(0, 1), valueSchema=value_schema)  # the schema is there already
    versions = {row["__schemaVersion"] for row in topics.read(topic, "__schemaVersion")}
    assert len(versions) == 1
    assert versions != {None}


def test_the_official_client_reads_records(client: pulsar.Client, topics: Topics, topic: str) -> None:
    columns = pa.schema([field for field in COLUMNS if field.name in ("id", "name", "inner")])
    batch = pa.RecordBatch.from_pylist(
        [{name: row[name] for name in columns.names} for row in ROWS], schema=columns
    )
    write(topics, topic, batch)
    schema = pulsar.schema.AvroSchema(None, schema_definition=record_definition(columns))
    reader = client.create_reader(topic, pulsar.MessageId.earliest, schema=schema)
    assert [reader.read_next(5000).value() for _ in ROWS] == batch.to_pylist()


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pa.array(["grün", None, ""]), "String"),
        (pa.array([True, None, False]), "Bool"),
        (pa.array([-128, None, 127], pa.int8()), "Int8"),
        (pa.array([-300, None, 300], pa.int16()), "Int16"),
        (pa.array([-(1 << 31), None, 5], pa.int32()), "Int32"),
        (pa.array([1 << 62, None, -1], pa.int64()), "Int64"),
        (pa.array([0.5, None, -2.25], pa.float32()), "Float"),
        (pa.array([0.1, None, 1e300], pa.float64()), "Double"),
        (pa.array([AT.date(), None, dt.date(1901, 2, 3)], pa.date32()), "Date"),
        (
            pa.array([AT.replace(microsecond=123_000), None, AT.replace(microsecond=0, year=1901)], TIME),
            "Timestamp",
        ),
    ],
)
def test_a_single_column_is_a_value_of_its_type(
    topics: Topics, topic: str, column: pa.Array, kind: str
) -> None:
    write(topics, topic, pa.RecordBatch.from_pydict({"anything": column}))
    fields, rows = typed(topics, topic)
    assert fields == {"value": column.type}
    assert [row["value"] for row in rows] == column.to_pylist()
    assert schema_of(topics.options(topic).access, [topic]).kind == pb.Schema.Type.Value(kind)


def test_values_that_the_topics_schema_does_not_allow_are_refused(topics: Topics, topic: str) -> None:
    write(topics, topic, pa.RecordBatch.from_pydict({"id": [1], "name": ["a"]}), valueSchema="json")
    text = pa.RecordBatch.from_pydict({"value": ['{"id": 2, "name": "b"}']})
    with pytest.raises(PipelineError, match="valueSchema=none"):
        write(topics, topic, text)
    write(topics, topic, text, valueSchema="none")
    assert typed(topics, topic)[1] == [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]


def record(*names: str) -> dict[str, Any]:
    fields = [{"name": name, "type": ["null", "string"], "default": None} for name in names]
    return {"type": "record", "name": "R", "fields": fields}


def in_avro(definition: Any, value: Any) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(definition), value)
    return buffer.getvalue()


def pair_schema(key: Any, value: Any, encoding: str) -> pb.Schema:
    """As the Java client registers a pair of AVRO records."""
    parts = [json.dumps(each).encode() for each in (key, value)]
    properties = {"key.schema.name": "k", "key.schema.type": "AVRO", "key.schema.properties": "{}",
                  "value.schema.name": "v", "value.schema.type": "AVRO", "value.schema.properties": "{}",
                  "kv.encoding.type": encoding}  # fmt: skip
    return pb.Schema(
        name="KeyValue",
        type=pb.Schema.Type.KeyValue,
        schema_data=b"".join(len(part).to_bytes(4, "big") + part for part in parts),
        properties=[pb.KeyValue(key=name, value=text) for name, text in properties.items()],
    )


@pytest.mark.parametrize("encoding", ["INLINE", "SEPARATED"])
def test_pairs_are_read_with_the_version_of_each_message(topics: Topics, topic: str, encoding: str) -> None:
    key, versions = record("id"), (record("a"), record("a", "b"))
    for number, definition in enumerate(versions):
        schema = pair_schema(key, definition, encoding)
        access = topics.options(topic).access
        producer = Producer(access, topic, None, pending_max=9, send_timeout_s=20, schema=schema)
        try:
            parts = in_avro(key, {"id": str(number)}), in_avro(definition, {"a": "x", "b": "y"})
            inline = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
            metadata = pb.MessageMetadata(producer_name=str(producer.name), sequence_id=0, publish_time=1)
            if encoding == "SEPARATED":
                metadata.partition_key = base64.b64encode(parts[0]).decode()
                metadata.partition_key_b64_encoded = True
            producer.name_schema(metadata)
            payload = inline if encoding == "INLINE" else parts[1]
            producer.send(0, send_frame(1, metadata, payload, pb.NONE))
            producer.flush()
        finally:
            producer.close()
    fields, rows = typed(topics, topic)
    assert fields["value"] == pa.struct([("a", pa.string()), ("b", pa.string())])
    assert rows == [
        {"key": {"id": "0"}, "value": {"a": "x", "b": None}},
        {"key": {"id": "1"}, "value": {"a": "x", "b": "y"}},
    ]


class Order(pulsar.schema.Record):  # type: ignore[misc]
    number = pulsar.schema.Integer()


class OrderWithNote(pulsar.schema.Record):  # type: ignore[misc]
    number = pulsar.schema.Integer()
    note = pulsar.schema.String(default=None, required_default=True)


@pytest.mark.parametrize("kind", ["AvroSchema", "JsonSchema"])
def test_the_official_clients_versions_are_read_into_the_latest(
    client: pulsar.Client, topics: Topics, topic: str, kind: str
) -> None:
    make = getattr(pulsar.schema, kind)
    old = client.create_producer(topic, schema=make(Order))
    old.send(Order(number=1))
    client.create_producer(topic, schema=make(OrderWithNote)).send(OrderWithNote(number=2, note="n"))
    old.send(Order(number=3))
    _, rows = typed(topics, topic)
    assert [(row["number"], row["note"]) for row in rows] == [(1, None), (2, "n"), (3, None)]


def test_bytes_have_no_schema(topics: Topics, topic: str) -> None:
    write(topics, topic, pa.RecordBatch.from_pydict({"value": [b"x"]}))
    write(topics, topic, pa.RecordBatch.from_pydict({"value": ["y"]}), valueSchema="none")
    assert schema_of(topics.options(topic).access, [topic]).kind is None
    assert typed(topics, topic)[1] == [{"value": b"x"}, {"value": b"y"}]


@pytest.mark.parametrize(
    ("columns", "value_schema", "words"),
    [
        ([("a b", pa.int32()), ("c", pa.int32())], "auto", "withColumnRenamed"),
        ([("a", pa.list_(pa.int32()))], "auto", "valueSchema=avro"),
        ([("a", pa.int32())], "none", "binary or string"),
        ([("a", pa.duration("us")), ("b", pa.int32())], "auto", "cast it"),
        ([("a", pa.int32()), ("__keyy", pa.string())], "auto", "'__keyy'"),
    ],
)
def test_columns_without_a_schema_are_refused(columns: Any, value_schema: str, words: str) -> None:
    with pytest.raises(BadColumns, match=words):
        value_encoder(pa.schema(columns), value_schema)


def test_a_null_that_the_schema_does_not_allow_is_refused() -> None:
    columns = pa.schema([pa.field("id", pa.int64(), nullable=False), ("b", pa.int32())])
    batch = pa.RecordBatch.from_arrays(
        [pa.array([None], pa.int64()), pa.array([1], pa.int32())], schema=columns
    )
    with pytest.raises(BadColumns, match="no record of the schema"):
        avro_rows(batch, record_definition(columns))


def test_keys_are_hashed_as_told(topics: Topics, admin: Admin, topic: str) -> None:
    admin.create_partitions(topic, 5)
    keys = ["a", "b", "hello", "ключ"]
    columns = {"value": [key.encode() for key in keys], "__key": keys}
    topics.write(topic, columns, **{"pulsar.producer.hashingScheme": "Murmur3_32Hash"})
    where = {row["value"].decode(): int(row["__topic"].rpartition("-")[2]) for row in topics.read(topic)}
    # Murmur3, 32 bits, seed 0, sign bit off: 1009084850, 366902787, 613153351, 442048578
    hashes = {"a": 1009084850, "b": 366902787, "hello": 613153351, "ключ": 442048578}
    assert where == {key: found % 5 for key, found in hashes.items()}
    plain = {"value": [b"x"] * 8}
    topics.write(topic, plain, task=Task("test", 3, 0), batchRows="1",
                 **{"pulsar.producer.messageRoutingMode": "SinglePartition"})  # fmt: skip
    assert {row["__topic"][-1] for row in topics.read(topic) if row["value"] == b"x"} == {"3"}
