"""Random AVRO schemas of the kinds that are decoded in columns, a later version of each, and values."""

from __future__ import annotations

import io
import json
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa

from geminga.pipeline.errors import Access
from geminga.pipeline.values.avro_columns import Decoded, column_decoder
from geminga.pipeline.values.avro_shapes import Shape, shape_of
from geminga.pipeline.values.decoding import Readable, ValueDecoder, _narrowed, _readable
from geminga.pipeline.values.rules import OutOfRange
from geminga.pipeline.values.schemas import TopicSchema
from geminga.wire import pulsar_pb2 as pb

PROMOTED = {"int": ("long", "float", "double"), "long": ("float", "double"), "float": ("double",),
            "string": ("bytes",), "bytes": ("string",)}  # fmt: skip
TEXTS = ("", "a", "grün\n", "€" * 30, "😀" * 70, "\0", "x" * 200)


@dataclass
class Made:
    writer: Any
    reader: Any
    """What a later version of the schema may say."""
    make: Callable[[], Any]


class Subset:
    """`evolves`: the reader's schema differs. `empty_items`: some arrays have items that take no bytes."""

    def __init__(self, seed: int, *, evolves: bool, empty_items: bool = True) -> None:
        self.random = random.Random(seed)
        self.evolves = evolves
        self.empty_items = empty_items
        self._names = 0

    def name(self, what: str) -> str:
        self._names += 1
        return f"{what}{self._names}"

    def chance(self, of_ten: int) -> bool:
        return self.random.randrange(10) < of_ten

    def any(self, depth: int) -> Made:
        simple = [
            self.number,
            self.number,
            self.text,
            self.flag,
            self.enum,
            self.fixed,
            self.logical,
            self.null,
        ]
        if depth == 0 or self.chance(4):
            return self.random.choice(simple)()
        return self.random.choice([self.record, self.array, self.map, self.optional, self.optional])(
            depth - 1
        )

    def null(self) -> Made:
        return Made("null", "null", lambda: None)

    def flag(self) -> Made:
        return Made("boolean", "boolean", lambda: self.chance(5))

    def _later(self, kind: str) -> str:
        return (
            self.random.choice(PROMOTED[kind])
            if self.evolves and self.chance(3) and kind in PROMOTED
            else kind
        )

    def number(self) -> Made:
        kind = self.random.choice(["int", "long", "float", "double"])
        if kind in ("int", "long"):
            bits = 31 if kind == "int" else 63
            edges = [0, 1, -1, 63, 64, -64, -65, (1 << bits) - 1, -(1 << bits)]

            def make() -> int:
                if self.chance(5):
                    return self.random.choice(edges)
                return self.random.randrange(
                    -(1 << self.random.randrange(1, bits)), 1 << self.random.randrange(bits)
                )

            return Made(kind, self._later(kind), make)
        some = [0.0, -0.0, 1.5, float("nan"), float("inf"), -float("inf"), 2.0**-140, 3.4e38]
        return Made(kind, self._later(kind), lambda: self.random.choice(some))

    def text(self) -> Made:
        kind = self.random.choice(["string", "bytes"])
        later = self._later(kind)
        if kind == "bytes" and later == "bytes":
            return Made(kind, later, lambda: self.random.randbytes(self.random.choice((0, 1, 9, 70, 130))))
        encode = (lambda text: text) if kind == "string" else str.encode
        return Made(kind, later, lambda: encode(self.random.choice(TEXTS)))

    def enum(self) -> Made:
        name, symbols = self.name("Enum"), ["red", "blue", "green"]
        later = [*symbols[::-1], "white"] if self.evolves and self.chance(5) else symbols
        definition = {"type": "enum", "name": name, "symbols": later}
        if self.evolves and self.chance(3):
            definition |= {"symbols": ["white", "blue"], "default": "white"}
        written = {"type": "enum", "name": name, "symbols": symbols}
        return Made(written, definition, lambda: self.random.choice(symbols))

    def fixed(self) -> Made:
        size = self.random.choice((0, 1, 7, 16, 60))
        definition = {"type": "fixed", "name": self.name("Fixed"), "size": size}
        return Made(definition, definition, lambda: self.random.randbytes(size))

    def logical(self) -> Made:
        kind = self.random.choice(("date", "timestamp-millis", "timestamp-micros", "bytes", "fixed"))
        if kind == "date":
            definition: Any = {"type": "int", "logicalType": kind}
            return Made(definition, definition, lambda: self.random.randrange(-700_000, 2_900_000))
        if kind.startswith("timestamp"):
            unit = 1000 if kind.endswith("millis") else 1
            definition = {"type": "long", "logicalType": kind}
            edges = (0, -1, -62_135_596_800_000_000 // unit, 253_402_300_799_999_000 // unit)
            return Made(
                definition,
                definition,
                lambda: self.random.choice((*edges, self.random.randrange(-(10**12), 10**12))),
            )
        digits = self.random.choice((1, 9, 18, 19, 20, 37, 38))
        scale = self.random.randrange(digits + 1)
        definition = {"type": kind, "logicalType": "decimal", "precision": digits, "scale": scale}
        if kind == "fixed":
            definition |= {
                "name": self.name("Decimal"),
                "size": 17 if digits > 18 else 16 if digits > 9 else 8,
            }
        most = 10**digits - 1

        def make() -> Decimal:
            unscaled = self.random.choice((0, 1, -1, most, -most, self.random.randrange(-most, most + 1)))
            sign, figures = int(unscaled < 0), tuple(int(figure) for figure in str(abs(unscaled)))
            return Decimal((sign, figures, -scale))

        return Made(definition, definition, make)

    def optional(self, depth: int) -> Made:
        of = self.any(depth)
        while isinstance(of.writer, list) or isinstance(of.reader, list) or of.writer == "null":
            of = self.any(depth)
        writer = ["null", of.writer] if self.chance(5) else [of.writer, "null"]
        share = self.random.choice((1, 5, 9))
        if self.evolves and self.chance(2):
            return Made(of.writer, ["null", of.reader], of.make)
        reader = ["null", of.reader] if self.chance(5) and self.evolves else [of.reader, "null"]
        return Made(writer, reader, lambda: of.make() if self.chance(share) else None)

    def _count(self) -> int:
        return self.random.choice((0, 0, 1, 2, 3, 40))

    def array(self, depth: int) -> Made:
        of = self.any(depth)
        while not self.empty_items and not takes_bytes(of.writer):
            of = self.any(depth)
        return Made(
            {"type": "array", "items": of.writer},
            {"type": "array", "items": of.reader},
            lambda: [of.make() for _ in range(self._count() if depth < 2 else 2)],
        )

    def map(self, depth: int) -> Made:
        of = self.any(depth)
        return Made(
            {"type": "map", "values": of.writer},
            {"type": "map", "values": of.reader},
            lambda: {f"k{n}é": of.make() for n in range(self._count() if depth < 2 else 2)},
        )

    def record(self, depth: int) -> Made:
        fields = [
            (f"f{index}", self.any(depth)) for index in range(self.random.randrange(0 if depth else 1, 5))
        ]
        later = [{"name": name, "type": of.reader} for name, of in fields]
        name = self.name("Record")
        if self.evolves:
            self.random.shuffle(later)
            for each in later:
                if self.chance(1):
                    each |= {"name": f"new_{each['name']}", "aliases": [each["name"]]}
            if later and self.chance(3):
                later.pop()
            if self.chance(4):
                later += self.random.sample(ADDED, 2)
        reader: dict[str, Any] = {"type": "record", "name": name, "fields": later}
        if self.evolves and self.chance(2):
            reader |= {"name": f"New{name}", "aliases": [name]}
        return Made(
            {"type": "record", "name": name, "fields": [{"name": n, "type": of.writer} for n, of in fields]},
            reader,
            lambda: {each: of.make() for each, of in fields},
        )


ADDED: list[dict[str, Any]] = [
    {"name": "a1", "type": "int", "default": 7},
    {"name": "a2", "type": ["null", "string"]},
    {"name": "a3", "type": {"type": "array", "items": "long"}, "default": [1, 2]},
    {"name": "a4", "type": ["string", "null"], "default": "é"},
    {"name": "a5", "type": {"type": "map", "values": "int"}, "default": {"k": 1}},
]


def takes_bytes(writer: Any) -> bool:
    if not isinstance(writer, dict):
        return bool(writer != "null")
    if writer["type"] == "record":
        return any(takes_bytes(each["type"]) for each in writer["fields"])
    return writer.get("size") != 0


@dataclass
class Pair:
    """Both ways to decode what one schema wrote as another says."""

    decoder: ValueDecoder
    writer: Readable
    reader: Readable
    shape: Shape
    kind: pa.DataType

    def rows(self, *values: bytes | None) -> pa.Array:
        raw = pa.array(values, pa.binary())
        return self.decoder._row_by_row(raw, self.writer, self.reader, self.shape, self.kind)

    def columns(self, values: pa.BinaryArray, out_of_range: OutOfRange = "clamp") -> Decoded:
        made = column_decoder(self.writer.in_columns, self.reader.in_columns, self.kind, out_of_range)
        assert made is not None, (self.writer, self.reader, self.kind)
        found = made(values)
        found.column.validate(full=True)
        return found


def pair(writer: Any, reader: Any, wanted: frozenset[str] | None = None) -> Pair:
    """`wanted`: fields of the reader's; None: all."""
    latest = TopicSchema(pb.Schema.Type.Avro, json.dumps(reader).encode())
    decoder = ValueDecoder(Access("pulsar://nowhere"), "t", latest, pa.schema([]))
    parsed = _readable(latest)
    written = decoder._of_version(TopicSchema(latest.kind, json.dumps(writer).encode()), parsed, None)
    kind = shape_of(reader).arrow
    if wanted is not None:
        kind = pa.struct([each for each in kind if each.name in wanted])
    return Pair(decoder, written, *_narrowed(latest, parsed, kind), kind)


def encoded(writer: Any, values: list[Any]) -> list[bytes]:
    parsed = fastavro.parse_schema(writer)
    found = []
    for value in values:
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, parsed, value)
        found.append(buffer.getvalue())
    return found


def in_numbers(column: pa.Array) -> list[Any]:
    """With times as their numbers: Python's own end with the year 9999."""
    return [_in_numbers(each) for each in column]


def _in_numbers(value: Any) -> Any:
    if not value.is_valid:
        return None
    if pa.types.is_timestamp(value.type) or pa.types.is_date32(value.type):
        return value.value
    if pa.types.is_struct(value.type):
        return {each.name: _in_numbers(value[each.name]) for each in value.type}
    if pa.types.is_map(value.type):
        return [(_in_numbers(each["key"]), _in_numbers(each["value"])) for each in value.values]
    return [_in_numbers(each) for each in value.values] if pa.types.is_list(value.type) else value.as_py()


def bits(value: Any) -> Any:
    """With floats as their bits, and a NaN as one that is quiet: Python's own conversions make it so."""
    if isinstance(value, float):
        return struct.pack(">d", value) if value == value else "nan"
    if isinstance(value, list | tuple):
        return [bits(each) for each in value]
    return {key: bits(each) for key, each in value.items()} if isinstance(value, dict) else value
