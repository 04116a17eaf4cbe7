"""Values of primitive schemas and pairs as the Java client writes them, and back as they were read."""

from __future__ import annotations

import datetime as dt
import struct
from typing import Any

import pulsar
import pyarrow as pa
import pytest

from geminga.pipeline.errors import BadOption
from geminga.pipeline.topics.options import parse_options
from geminga.pipeline.values.avro_shapes import TIME
from geminga.pipeline.values.avro_writing import BadColumns
from geminga.pipeline.values.primitive_values import PRIMITIVES, encoded_primitives, primitives
from geminga.pipeline.values.schemas import schema_of
from geminga.pipeline.values.value_encoding import pair_encoder, value_encoder
from geminga.pipeline.values.written_schemas import PRIMITIVE_SCHEMAS
from geminga.wire import pulsar_pb2 as pb
from tests.pipeline.conftest import Topics
from tests.pipeline.values.test_value_schemas import typed, write

TYPE = pb.Schema.Type
AT = dt.datetime(2024, 5, 6, 7, 8, 9, 123_456)
BEFORE = dt.datetime(1969, 12, 31, 23, 59, 59, 999_999)
NONE = b"\xff\xff\xff\xff"


def sized(part: bytes) -> bytes:
    return len(part).to_bytes(4, "big") + part


@pytest.mark.parametrize(
    ("schema", "column", "encoded"),
    [
        ("boolean", pa.array([True, False]), [b"\1", b"\0"]),
        ("int8", pa.array([-128, 127], pa.int64()), [b"\x80", b"\x7f"]),
        ("int16", pa.array([-300, 300], pa.int32()), [b"\xfe\xd4", b"\x01\x2c"]),
        ("int32", pa.array([-1, 5], pa.int8()), [b"\xff\xff\xff\xff", b"\0\0\0\5"]),
        ("int64", pa.array([-(1 << 63), 5]), [b"\x80" + bytes(7), b"\0\0\0\0\0\0\0\5"]),
        ("float", pa.array([0.5, -2.25], pa.float32()), [b"\x3f\0\0\0", b"\xc0\x10\0\0"]),
        ("double", pa.array([0.5, -2.25], pa.float32()), [struct.pack(">d", 0.5), struct.pack(">d", -2.25)]),
        ("date", pa.array([-1, 19_849], pa.date32()),
         [struct.pack(">q", -86_400_000), struct.pack(">q", 19_849 * 86_400_000)]),
        ("time", pa.array([1500, -1_800_000]), [struct.pack(">q", 1500), struct.pack(">q", -1_800_000)]),
        ("timestamp", pa.array([BEFORE, AT], TIME),
         [struct.pack(">q", -1), struct.pack(">q", 1_714_979_289_123)]),
        ("instant", pa.array([BEFORE, AT], TIME),
         [struct.pack(">qi", -1, 999_999_000), struct.pack(">qi", 1_714_979_289, 123_456_000)]),
        ("local_date", pa.array([-1, 19_849], pa.date32()),
         [struct.pack(">q", -1), struct.pack(">q", 19_849)]),
        ("local_time", pa.array([0, 86_399_999_999_999]),
         [bytes(8), struct.pack(">q", 86_399_999_999_999)]),
        ("local_date_time", pa.array([BEFORE, AT], pa.timestamp("us")),
         [struct.pack(">qq", -1, 86_399_999_999_000), struct.pack(">qq", 19_849, 25_689_123_456_000)]),
    ],
)  # fmt: skip
def test_a_column_is_written_with_the_schema_that_is_named(
    schema: str, column: pa.Array, encoded: list[bytes]
) -> None:
    some = pa.concat_arrays([column, pa.nulls(1, column.type), column]).slice(1)
    encoder = value_encoder(pa.schema([("value", column.type)]), schema)
    found = encoder(pa.RecordBatch.from_pydict({"value": some})).value
    assert found.to_pylist() == [encoded[1], None, *encoded]
    kind = PRIMITIVE_SCHEMAS[schema].kind
    again = encoded_primitives(kind, primitives(kind, found), "value")
    assert again == found, "what is read is written back"


def test_every_primitive_schema_can_be_written() -> None:
    assert {each.kind for each in PRIMITIVE_SCHEMAS.values()} == set(PRIMITIVES)


@pytest.mark.parametrize(
    ("schema", "column", "said"),
    [
        ("int8", pa.array([1, None, 300]), "column 'value' has 300, and INT8 is from -128 to 127"),
        ("int32", pa.array([-(1 << 40)]), "has -1099511627776, and INT32 is from -2147483648"),
        ("local_time", pa.array([86_400_000_000_000]), "has 86400000000000, and LOCAL_TIME is from 0 to"),
        ("local_time", pa.array([-1]), "has -1, and LOCAL_TIME is from 0 to 86399999999999"),
        ("float", pa.array([0.1]), "column 'value' is double; valueSchema=float needs float: cast it"),
        ("instant", pa.array([AT]), r"is timestamp\[us\]; valueSchema=instant needs timestamp: cast it"),
        ("local_date_time", pa.array([AT], TIME), "needs timestamp_ntz: cast it"),
        ("time", pa.array(["08:00"]), "valueSchema=time needs milliseconds of the day as bigint: cast it"),
    ],
)
def test_what_does_not_fit_is_named_with_its_column(schema: str, column: pa.Array, said: str) -> None:
    batch = pa.RecordBatch.from_pydict({"value": column})
    with pytest.raises(BadColumns, match=said):
        value_encoder(batch.schema, schema)(batch)


@pytest.mark.parametrize(
    ("schema", "column"),
    [
        ("int8", pa.array([5, None], pa.int8())),
        ("time", pa.array([1500, None])),
        ("instant", pa.array([AT, None], TIME)),
        ("local_date", pa.array([AT.date(), None], pa.date32())),
        ("local_time", pa.array([7, None])),
        ("local_date_time", pa.array([AT, None], pa.timestamp("us"))),
        ("auto", pa.array([AT, None], pa.timestamp("us"))),
    ],
)
def test_topics_of_primitive_schemas_are_written_and_read(
    topics: Topics, topic: str, schema: str, column: pa.Array
) -> None:
    write(topics, topic, pa.RecordBatch.from_pydict({"value": column}), valueSchema=schema)
    assert typed(topics, topic) == ({"value": column.type}, [{"value": each} for each in column.to_pylist()])
    wanted = PRIMITIVE_SCHEMAS["local_date_time" if schema == "auto" else schema].kind
    assert schema_of(topics.options(topic).access, [topic]).kind == wanted


STRUCT = pa.struct([pa.field("id", pa.int64(), nullable=False), ("note", pa.string())])
PAIRS = pa.RecordBatch.from_pydict(
    {
        "key": pa.array([1, 2, None, None], pa.int32()),
        "value": pa.array([{"id": 7, "note": "n"}, None, {"id": 8, "note": None}, None], STRUCT),
    }
)


@pytest.mark.parametrize("value_schema", ["auto", "avro", "json"])
@pytest.mark.parametrize("encoding", ["INLINE", "separated"])
def test_pairs_are_written_and_read(topics: Topics, topic: str, encoding: str, value_schema: str) -> None:
    options = {"keyValueEncoding": encoding, "valueSchema": value_schema}
    write(topics, topic, PAIRS, **options)
    fields, rows = typed(topics, topic)
    assert fields["key"] == pa.int32()
    assert rows == PAIRS.to_pylist()
    found = schema_of(topics.options(topic).access, [topic])
    assert found.separated == (encoding == "separated")
    assert [part.kind_name for part in found.parts()] == [
        "INT32",
        "JSON" if value_schema == "json" else "AVRO",
    ]
    stored = topics.read(topic, "__keyBase64")
    assert stored[3]["value"] is None, "neither a key nor a value"
    if encoding == "separated":
        keys = [(row["__key"], row["__keyBase64"]) for row in stored]
        assert keys == [(b"\0\0\0\1", True), (b"\0\0\0\2", True), (None, False), (None, False)]
        assert stored[1]["value"] is None


def test_an_inline_pair_has_the_bytes_of_the_java_client() -> None:
    batch = pa.RecordBatch.from_pydict(
        {"value": pa.array(["v", None, "", None]), "key": pa.array([1, 2, None, None], pa.int64())}
    )
    encode = pair_encoder(batch.schema, "int16", "auto", "inline")
    assert encode(batch).value.to_pylist() == [
        sized(b"\0\1") + sized(b"v"),
        sized(b"\0\2") + NONE,
        NONE + sized(b""),
        None,
    ]
    assert encode(batch).key is None
    schema = encode.schema
    assert schema.schema_data == bytes(8)
    assert {each.key: each.value for each in schema.properties} == {
        "kv.encoding.type": "INLINE",
        "key.schema.name": "INT16",
        "key.schema.type": "INT16",
        "key.schema.properties": "{}",
        "value.schema.name": "String",
        "value.schema.type": "STRING",
        "value.schema.properties": "{}",
    }


def test_a_separated_key_decides_whatever_the_column_beside_says(topics: Topics, topic: str) -> None:
    """A DataFrame of such a topic has `__key` too, as it was read."""
    batch = pa.RecordBatch.from_pydict({"key": ["new"], "value": [b"v"], "__key": [b"as it was read"]})
    write(topics, topic, batch, keyValueEncoding="separated", valueSchema="none")
    assert [row["__key"] for row in topics.read(topic)] == [b"new"]
    assert typed(topics, topic)[1] == [{"key": "new", "value": b"v"}]


@pytest.mark.parametrize(
    ("columns", "schemas", "said"),
    [
        ([("key", pa.int32())], ("auto", "auto"), "needs the columns 'key' and 'value'"),
        ([("key", pa.int32()), ("value", pa.int32()), ("c", pa.int32())], ("auto", "auto"), "key, value, c"),
        ([("key", pa.int32()), ("value", pa.int32())], ("avro", "auto"), "keySchema=avro needs a struct"),
        ([("key", pa.int32()), ("value", pa.int32())], ("auto", "none"), "needs binary or string"),
        ([("key", pa.string()), ("value", pa.int32())], ("int8", "auto"), "is string; keySchema=int8 needs"),
        ([("key", pa.list_(pa.int8())), ("value", pa.int32())], ("auto", "auto"), "make it a struct"),
    ],
)  # fmt: skip
def test_columns_that_are_no_pair_are_refused(columns: Any, schemas: tuple[str, str], said: str) -> None:
    with pytest.raises(BadColumns, match=said):
        pair_encoder(pa.schema(columns), *schemas, "inline")


def test_the_schema_of_a_key_needs_the_encoding_of_pairs() -> None:
    given = {"service.url": "pulsar://localhost:1", "topic": "t", "keySchema": "int8"}
    with pytest.raises(BadOption, match="give keyValueEncoding"):
        parse_options(given)


@pytest.mark.parametrize("encoding", ["inline", "separated"])
def test_a_pair_that_a_task_orders_by_content_comes_whole(topics: Topics, topic: str, encoding: str) -> None:
    batch = pa.RecordBatch.from_pydict({"key": ["b", "a"], "value": [1, 2]})
    write(topics, topic, batch, keyValueEncoding=encoding, taskOrder="content")
    assert sorted(row["key"] + str(row["value"]) for row in typed(topics, topic)[1]) == ["a2", "b1"]


def test_the_official_client_gets_the_bytes_of_pairs(
    client: pulsar.Client, topics: Topics, topic: str
) -> None:
    """It has none of these: what it gets are the bytes of a pair, and the key as the protocol has it."""
    write(topics, topic, PAIRS, keyValueEncoding="inline", valueSchema="json")
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = [reader.read_next(5000) for _ in range(3)]
    assert found[0].data() == sized(b"\0\0\0\1") + sized(b'{"id":7,"note":"n"}')
    assert found[1].data() == sized(b"\0\0\0\2") + NONE
    separated = f"{topic}-separated"
    write(topics, separated, PAIRS, keyValueEncoding="separated", valueSchema="json")
    first = client.create_reader(separated, pulsar.MessageId.earliest).read_next(5000)
    assert (first.partition_key(), first.data()) == ("AAAAAQ==", b'{"id":7,"note":"n"}')
