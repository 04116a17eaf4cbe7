"""Payloads against what Pulsar's own classes make of them; `JavaText.java` prints the table."""

from __future__ import annotations

import io
import itertools
import json
import random
import struct
from pathlib import Path

import fastavro
import pytest

from geminga.cli.payloads import chunks, compression, java_text, schemas
from geminga.cli.payloads.avro import AvroSchema
from geminga.cli.payloads.errors import CannotDecode, CannotEncode
from geminga.wire import pulsar_pb2 as pb

TABLE = Path(__file__).with_name("java_text.tsv")
ROWS = [line.split("\t") for line in TABLE.read_text().split("\n") if line]


def rows(kind: str) -> list[tuple[str, str]]:
    found = [(given, expected) for named, given, expected in ROWS if named == kind]
    assert found
    return found


def java_hash(data: bytes) -> int:
    """`Arrays.hashCode`."""
    code = 1
    for byte in data:
        code = (31 * code + (byte ^ 128) - 128) & 0xFFFFFFFF
    return code - (code >> 31 << 32)


@pytest.mark.parametrize(("given", "expected"), rows("hash-order"))
def test_maps_are_listed_as_java_lists_them(given: str, expected: str) -> None:
    assert ",".join(java_text.hash_order(given.split(","))) == expected


@pytest.mark.parametrize(("given", "expected"), rows("double"))
def test_doubles_are_printed_as_java_prints_them(given: str, expected: str) -> None:
    assert java_text.double_text(struct.unpack(">d", bytes.fromhex(given))[0]) == expected


@pytest.mark.parametrize(("given", "expected"), rows("hex-dump"))
def test_a_hex_dump_is_that_of_the_tool(given: str, expected: str) -> None:
    assert java_text.hex_dump(bytes.fromhex(given)) == bytes.fromhex(expected).decode()


@pytest.mark.parametrize("kind", ["LZ4", "ZLIB", "ZSTD", "SNAPPY"])
def test_what_java_packed_is_unpacked(kind: str) -> None:
    for packed, expected in rows(f"packed-{kind}"):
        size, _, code = expected.partition(":")
        found = compression.inflated(kind, bytes.fromhex(packed), int(size))
        assert (len(found), java_hash(found)) == (int(size), int(code))


@pytest.mark.parametrize("kind", ["LZ4", "ZLIB", "SNAPPY"])
def test_a_damaged_payload_is_refused_and_never_larger_than_it_says(kind: str) -> None:
    chance = random.Random(19)
    for packed, expected in rows(f"packed-{kind}"):
        size = int(expected.partition(":")[0])
        for _ in range(100):
            damaged = bytearray(bytes.fromhex(packed))
            for _ in range(chance.randrange(1, 4)):
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
            try:
                found = compression.inflated(kind, bytes(damaged), size)
            except CannotDecode:
                continue
            assert len(found) <= max(size, compression.INFLATED_BYTES_MAX)
    with pytest.raises(CannotDecode):
        compression.inflated(kind, b"", 2**40)


@pytest.mark.parametrize(
    ("kind", "bomb"),
    [
        ("LZ4", b"\x1fx\x01\x00" + b"\xff" * 1000 + b"\x00"),
        ("SNAPPY", b"\x0a\x00x" + b"\xfe\x01\x00" * 1000),
    ],
)
def test_a_payload_that_unpacks_to_more_than_it_says_is_refused(kind: str, bomb: bytes) -> None:
    with pytest.raises(CannotDecode, match="more bytes than it says"):
        compression.inflated(kind, bomb, 10)


def test_what_is_packed_here_is_unpacked_here() -> None:
    payload = b"again and again and again " * 100
    for kind in compression.COMPRESSIONS:
        packed = compression.deflated(kind, payload)
        assert compression.inflated(kind.upper(), packed, len(payload)) == payload


@pytest.mark.parametrize(("given", "expected"), rows("avro"))
def test_avro_is_written_and_read_as_java_does(given: str, expected: str) -> None:
    definition, _, value = given.partition("\x01")
    schema = schemas.parsed(f"avro:{definition}")
    assert schema is not None
    assert schemas.encoded(schema, value).hex() == expected
    ours = schemas.decoded(schema, bytes.fromhex(expected))
    theirs = fastavro.schemaless_reader(io.BytesIO(bytes.fromhex(expected)), json.loads(definition), None)
    assert ours == theirs
    plain = {**ours, "raw": ours["raw"].decode("latin-1")}
    if plain["parent"] is None:
        assert schemas.encoded(schema, json.dumps(plain)).hex() == expected, "branches may go unnamed"


def test_hostile_avro_is_refused() -> None:
    recursive = '{"type":"record","name":"R","fields":[{"name":"r","type":["R","null"]}]}'
    nothing = '{"type":"array","items":"null"}'
    for definition, data in (
        (recursive, bytes(100_000)),
        (nothing, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
        (nothing, b"\xff" * 20),
        ('"string"', b"\x7f"),
        ('"string"', b"\x01"),
        ('["null"]', b"\x04"),
        ('{"type":"enum","name":"E","symbols":["A"]}', b"\x01"),
        ('"unheard-of"', b""),
        ('"string"', b"\x02\xff"),
    ):
        with pytest.raises(CannotDecode):
            AvroSchema.parse(definition).decode(data)


@pytest.mark.parametrize(("given", "expected"), rows("primitive"))
def test_primitives_are_written_and_read_as_java_does(given: str, expected: str) -> None:
    name, _, text = given.partition("\x01")
    schema = schemas.parsed(name)
    assert schema is not None
    assert schemas.encoded(schema, text).hex() == expected
    decoded = schemas.decoded(schema, bytes.fromhex(expected))
    assert schemas.encoded(schema, str(decoded)).hex() == expected


@pytest.mark.parametrize(("given", "expected"), rows("key-value-schema"))
def test_the_schema_of_a_key_and_a_value_is_that_of_java(given: str, expected: str) -> None:
    made = schemas.key_value_schema(schemas.parsed("string"), None, separated=given == "SEPARATED")
    data, _, properties = expected.partition("\x01")
    assert made.data.hex() == data
    shown = ", ".join(f"{name}={value}" for name, value in sorted(made.properties.items()))
    assert f"{{{shown}}}" == properties


def test_a_key_and_a_value_travel_as_java_sends_them() -> None:
    [(given, expected)] = rows("key-value")
    key, _, value = given.partition("\x01")
    assert schemas.inline(key.encode(), value.encode()).hex() == expected
    schema = schemas.key_value_schema(schemas.parsed("string"), schemas.parsed("string"), separated=False)
    both = schemas.decoded(schema, bytes.fromhex(expected))
    assert (both.key, both.value) == (key, value)
    assert java_text.value_text(both, schema.kind) == (
        "{key={value=k, type=class java.lang.String}, value={value=value, type=class java.lang.String}}"
    )
    for damaged in (b"", b"\0\0\0\x09k", b"\x7f\xff\xff\xff"):
        with pytest.raises(CannotDecode):
            schemas.decoded(schema, damaged)


@pytest.mark.parametrize(
    ("schema", "text", "problem"),
    [
        ("int32", "x", "no Int32 value"),
        ("int8", "300", "no Int8 value"),
        ("boolean", "yes", "expected true or false"),
        ('avro:{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}', "{}", "R lacks 'a'"),
        (
            'avro:{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}',
            '{"a":"x"}',
            "int is expected",
        ),
        ('json:{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}', "{", "no Json value"),
    ],
)
def test_a_text_that_is_no_value_is_refused(schema: str, text: str, problem: str) -> None:
    with pytest.raises(CannotEncode, match=problem):
        schemas.encoded(schemas.parsed(schema), text)


@pytest.mark.parametrize("text", ["avro", "avro:", "avro:{}", "xml", "avro:[1]", "json:17"])
def test_an_unknown_schema_is_refused(text: str) -> None:
    with pytest.raises(CannotEncode):
        schemas.parsed(text)


def test_times_are_shown_as_texts() -> None:
    kinds = pb.Schema.Type
    for kind, raw, expected in (
        (kinds.Instant, struct.pack(">qi", 1, 500_000_000), "1970-01-01T00:00:01.5Z"),
        (kinds.Timestamp, struct.pack(">q", -1), "1969-12-31T23:59:59.999Z"),
        (kinds.LocalDate, struct.pack(">q", 1), "1970-01-02"),
        (kinds.LocalTime, struct.pack(">q", 3_600_000_000_000), "01:00:00"),
        (kinds.LocalDateTime, struct.pack(">qq", 1, 1), "1970-01-02T00:00:00.000000001"),
    ):
        assert schemas.decoded(schemas.Schema(kind), raw) == expected
    with pytest.raises(CannotDecode):
        schemas.decoded(schemas.Schema(kinds.Instant), struct.pack(">qi", 2**62, 0))


def test_chunks_come_together_in_any_mixture() -> None:
    messages = {uuid: random.Random(uuid).randbytes(1000) for uuid in "abc"}
    parts = {uuid: list(chunks.cut(payload, 300)) for uuid, payload in messages.items()}
    assembly = chunks.Assembly()
    whole = {}
    for number, uuid in itertools.product(range(4), messages):
        done = assembly.add(uuid, parts[uuid][number], (ord(uuid), number))
        if done is not None:
            whole[uuid] = done.payload
            assert done.positions == tuple((ord(uuid), index) for index in range(4))
    assert whole == messages


def test_chunks_without_their_predecessors_wait_for_nothing() -> None:
    assembly = chunks.Assembly(pending_max=2)
    first, last = chunks.cut(b"abcd", 2)
    assert assembly.add("late", last, (1, 1)) is None
    for uuid in ("a", "b", "c"):
        assert assembly.add(uuid, first, (1, 0)) is None
    assert assembly.add("a", last, (1, 1)) is None, "it made room for the third"
    whole = assembly.add("c", last, (1, 1))
    assert whole is not None
    assert whole.payload == b"abcd"
