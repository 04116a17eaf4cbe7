"""Payloads into typed columns, as a topic's schema says."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from geminga.pipeline.client.connection import Connection
from geminga.pipeline.client.topics import full_name
from geminga.pipeline.columns.batches import Messages, select
from geminga.pipeline.columns.columns import VALUE, Values, decoded_keys, payloads, text
from geminga.pipeline.errors import SET_RAW_VALUE, Access, Option
from geminga.pipeline.values.avro_shapes import (
    BadValue,
    SchemaMismatch,
    Shape,
    readable_definition,
    shape_of,
)
from geminga.pipeline.values.primitive_values import primitives
from geminga.pipeline.values.rules import DEFAULT_RULES, OutOfRange, ValueRules
from geminga.pipeline.values.schemas import (
    KEY,
    TopicSchema,
    definition_of,
    fetch_schema,
    value_fields,
)
from geminga.pipeline.values.structured_values import from_avro, from_json
from geminga.wire import pulsar_pb2 as pb

_TYPE = pb.Schema.Type
_VERSIONS_MAX = 1000
_BAD_AVRO = (
    ValueError,
    TypeError,
    EOFError,
    IndexError,
    KeyError,
    AttributeError,
    StopIteration,
    ArithmeticError,
    RecursionError,
)
_NOT_IN_COLUMNS = ("bytes", "fixed", "map", "null", "members", "logical")
"""What the compiled reader of JSON cannot do, or does in another way than the clients."""


class ValueDecoder:
    """Decodes the values of one topic into the wanted columns; schemas of older versions are fetched on
    sight.
    """

    def __init__(
        self,
        access: Access,
        topic: str,
        schema: TopicSchema,
        wanted: pa.Schema,
        rules: ValueRules = DEFAULT_RULES,
    ) -> None:
        self._access = access
        self._topic = topic
        self._schema = schema
        self._makes = value_fields(schema)
        # Whether a value is bad must not depend on which columns a query asks for.
        self._wanted = wanted if rules.mode == "failfast" else _with_all(wanted, self._makes)
        self._rules = rules
        self._corrupt = next((each for each in wanted if each.name == rules.corrupt_column), None)
        self._versions: dict[tuple[bytes, int | None], Any] = {}
        self._latest = schema.latest.get(str(full_name(topic).partitioned_name))

    @property
    def leaves_out(self) -> bool:
        """Whether rows may be missing from what it returns."""
        return self._rules.mode == "dropmalformed"

    def __call__(self, messages: Messages) -> Values:
        """Raises `BadValue` with the id of the message, if the mode is `failfast`, and `SchemaMismatch`."""
        bad = np.zeros(len(messages), bool)
        try:
            columns = self._decoded(messages)
        except BadValue:
            columns, bad = self._one_by_one(messages)
        kept = None
        if self._rules.mode == "dropmalformed" and bad.any():
            kept = ~bad
            columns = {name: column.filter(pa.array(kept)) for name, column in columns.items()}
        if self._corrupt is not None:
            raw = payloads(messages)
            held = self._rules.mode == "permissive" and bad.any()
            found = pc.if_else(pa.array(bad), raw, None) if held else pa.nulls(len(messages), pa.binary())
            # A schema of the user's may have it as text, as Spark's own sources do.
            found = text(found) if self._corrupt.type == pa.string() else found
            columns[self._corrupt.name] = found if kept is None else found.filter(pa.array(kept))
        return Values(columns, kept)

    def _one_by_one(self, messages: Messages) -> tuple[dict[str, pa.Array], Any]:
        """The columns, null where a value is bad, and which are. Halves what fails until the bad ones are
        left: most values are good where any are.
        """
        bad = np.zeros(len(messages), bool)
        pieces: list[dict[str, pa.Array] | int] = []

        def decode(begin: int, end: int) -> None:
            rows = np.zeros(len(messages), bool)
            rows[begin:end] = True
            try:
                pieces.append(self._decoded(select(messages, rows)))
            except BadValue as error:
                if end - begin > 1:
                    middle = (begin + end) // 2
                    decode(begin, middle)
                    decode(middle, end)
                    return
                if self._rules.mode == "failfast":
                    raise self._named(messages, begin, error) from None
                bad[begin] = True
                pieces.append(1)

        decode(0, len(messages))
        decoded = [piece for piece in pieces if isinstance(piece, dict)]
        types = {name: column.type for name, column in decoded[0].items()} if decoded else self._types()
        columns = {
            name: pa.concat_arrays(
                [piece[name] if isinstance(piece, dict) else pa.nulls(piece, kind) for piece in pieces]
            )
            for name, kind in types.items()
        }
        return columns, bad

    def _types(self) -> dict[str, pa.DataType]:
        return {each.name: each.type for each in self._wanted if each.name in self._makes}

    def _named(self, messages: Messages, row: int, error: BadValue) -> BadValue:
        entries, of = messages.entries, int(messages.entry[row])
        index = max(int(messages.batch_index[row]), 0)
        return BadValue(
            f"{self._topic}: the value of message {entries.ledger_id[of]}:{entries.entry_id[of]}:{index} is "
            "not what its schema says: ",
            error,
            "; if the schema has changed, load the table again, or ",
            Option("mode", "PERMISSIVE", "set"),
            " to get null for such values, or ",
            SET_RAW_VALUE,
            " to get bytes",
        )

    def _decoded(self, messages: Messages) -> dict[str, pa.Array]:
        """Raises `BadValue` if any is bad, and `SchemaMismatch`."""
        schema = self._schema
        raw = payloads(messages)
        wanted = {each.name: each.type for each in self._wanted}
        if schema.is_raw or self._wants_bytes(wanted):
            return {VALUE: raw}
        versions = _Versions(messages)
        if schema.kind != _TYPE.Avro:
            self._check(versions)
        if schema.kind == _TYPE.KeyValue:
            return self._pair(messages, versions, raw, wanted)
        if schema.kind in (_TYPE.Avro, _TYPE.Json) and set(self._makes) != {VALUE}:
            fields = [(name, kind) for name, kind in wanted.items() if name in self._makes]
            values = self._structured(schema, raw, pa.struct(fields), versions)
            # `flatten` and not `field`: a null message is null in each of its fields.
            columns = values.flatten()
            return {each.name: column for each, column in zip(values.type, columns, strict=True)}
        return {VALUE: self._whole(schema, raw, wanted.get(VALUE, self._makes[VALUE]), versions)}

    def _wants_bytes(self, wanted: dict[str, pa.DataType]) -> bool:
        """The user's own schema asks for the bytes."""
        return bool(wanted.get(VALUE) == pa.binary() and self._makes.get(VALUE) != pa.binary())

    def _pair(
        self, messages: Messages, versions: _Versions, raw: pa.Array, wanted: dict[str, pa.DataType]
    ) -> dict[str, pa.Array]:
        key_schema, value_schema = self._schema.parts()
        if self._schema.separated:
            keys = decoded_keys(messages)
        else:
            keys, raw = _split_pairs(raw)
        found = {}
        for part, (name, schema, column) in enumerate(
            ((KEY, key_schema, keys), (VALUE, value_schema, raw)),
        ):
            if name in wanted:
                found[name] = self._whole(schema, column, wanted[name], versions, part=part)
        return found

    def _whole(
        self,
        schema: TopicSchema,
        raw: pa.Array,
        kind: pa.DataType,
        versions: _Versions,
        *,
        part: int | None = None,
    ) -> pa.Array:
        """`part` of a pair: 0 is its key, 1 its value."""
        if schema.kind in (_TYPE.Avro, _TYPE.Json):
            return self._structured(schema, raw, kind, versions, part=part)
        if schema.kind is None or schema.is_raw or kind == pa.binary():
            return raw
        return primitives(schema.kind, raw, self._rules.out_of_range)

    def _structured(
        self,
        schema: TopicSchema,
        raw: pa.Array,
        kind: pa.DataType,
        versions: _Versions,
        *,
        part: int | None = None,
    ) -> pa.Array:
        if schema.kind == _TYPE.Json:
            return json_values(raw, kind, shape_of(definition_of(schema)), self._rules.out_of_range)
        return self._avro(schema, raw, kind, versions.of_row, part)

    def _avro(
        self,
        schema: TopicSchema,
        raw: pa.Array,
        kind: pa.DataType,
        version: Callable[[int], bytes | None],
        part: int | None = None,
    ) -> pa.Array:
        import fastavro

        latest = _readable(schema)
        reader, shape = _narrowed(schema, latest, kind)
        change = from_avro(shape, self._rules.out_of_range)
        found: list[Any] = []
        for row, payload in enumerate(raw.to_pylist()):
            if payload is None:
                found.append(None)
                continue
            writer = self._writer(version(row), latest, part)
            data = io.BytesIO(payload)
            try:
                value = fastavro.schemaless_reader(data, writer, reader, return_named_type=change is not None)
                if data.tell() < len(payload):
                    raise BadValue(f"{len(payload) - data.tell()} bytes are left behind the value")
                found.append(value if change is None else change(value))
            except (*_BAD_AVRO, fastavro.read.SchemaResolutionError) as error:
                raise BadValue(f"{type(error).__name__}: {error}") from None
        return _array(found, kind)

    def _writer(self, version: bytes | None, latest: Any, part: int | None) -> Any:
        """The schema that a message, or this part of its pair, was written with."""
        if version is None:
            return latest
        known = self._versions.get((version, part))
        if known is None:
            known = self._of_version(self._fetched(version), latest, part)
            if len(self._versions) >= _VERSIONS_MAX:
                self._versions.clear()
            self._versions[version, part] = known
        return known

    def _fetched(self, version: bytes) -> TopicSchema:
        """A version of the topic's schema. Raises `SchemaMismatch` if it is of another kind: its values are
        encoded in another way, and may pass for ours.
        """
        with Connection.open(self._access) as connection:
            found = fetch_schema(connection, self._topic, version)
        if not found.is_encoded_as(self._schema):
            raise SchemaMismatch(
                f"{self._topic}: messages have the schema {found.kind_name} (version "
                f"{int.from_bytes(version, 'big')}), and this query reads {self._schema.kind_name}: load the "
                "table again if the schema has changed, or ",
                SET_RAW_VALUE,
                " to get bytes",
            )
        return found

    def _check(self, versions: _Versions) -> None:
        for version in versions.distinct():
            if version != self._latest and (version, None) not in self._versions:
                self._versions[version, None] = self._fetched(version)

    def _of_version(self, schema: TopicSchema, latest: Any, part: int | None) -> Any:
        if part is not None:
            schema = schema.parts()[part]
        found = _readable(schema)
        records = isinstance(found, dict) and isinstance(latest, dict)
        if records and found["type"] == latest["type"] == "record":
            found["name"] = latest["name"]  # a class that was renamed is still what the values are
        return found


def _with_all(wanted: pa.Schema, makes: dict[str, pa.DataType]) -> pa.Schema:
    """All columns of values, those that are wanted in the type in which they are."""
    return pa.schema(
        [wanted.field(name) if name in wanted.names else (name, kind) for name, kind in makes.items()]
    )


class _Versions:
    """Which version of the schema each message was written with; None: it does not say."""

    def __init__(self, messages: Messages) -> None:
        self._messages = messages
        self._of_entry: dict[int, bytes | None] = {}

    def of_row(self, row: int) -> bytes | None:
        of = int(self._messages.entry[row])
        if of not in self._of_entry:
            entries = self._messages.entries
            at, size = int(entries.schema_version.at[of]), int(entries.schema_version.size[of])
            self._of_entry[of] = entries.data[at : at + size].tobytes() if at >= 0 else None
        return self._of_entry[of]

    def distinct(self) -> Iterator[bytes]:
        """Each version once."""
        entry = self._messages.entry
        firsts = np.flatnonzero(np.diff(entry, prepend=-1))
        yield from {version for row in firsts.tolist() if (version := self.of_row(row)) is not None}


def _readable(schema: TopicSchema) -> Any:
    """Of an AVRO schema what its decoder takes. Raises `SchemaMismatch`."""
    from fastavro.schema import SchemaParseException, UnknownType, parse_schema

    try:
        return parse_schema(readable_definition(definition_of(schema)))
    except (SchemaParseException, UnknownType, *_BAD_AVRO) as error:
        raise SchemaMismatch(
            f"a schema that is not AVRO's ({type(error).__name__}: {error}); ", SET_RAW_VALUE, " to get bytes"
        ) from None


def _narrowed(schema: TopicSchema, latest: Any, kind: pa.DataType) -> tuple[Any, Shape]:
    """What to read of values: the fields that `kind` has, if they are records; others are skipped."""
    definition = definition_of(schema)
    shape = shape_of(definition)
    if shape.kind != "record" or not pa.types.is_struct(kind):
        return latest, shape
    wanted = {each.name for each in kind}
    if wanted.issuperset(shape.fields):
        return latest, shape
    fields = [each for each in definition["fields"] if each["name"] in wanted]
    narrow = TopicSchema(schema.kind, json.dumps({**definition, "fields": fields}).encode())
    try:
        return _readable(narrow), shape_of(definition_of(narrow))
    except SchemaMismatch:
        return latest, shape  # a type is defined in a field that is left out, and used in one that is not


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise BadValue(f"it does not fit the column type {kind}: {error}") from None


def json_values(
    raw: pa.BinaryArray, kind: pa.DataType, shape: Shape | None = None, out_of_range: OutOfRange = "clamp"
) -> pa.Array:
    """Records by compiled code; whatever that refuses, one by one, as `shape` says. Raises `BadValue`."""
    if pa.types.is_struct(kind) and len(raw) and (shape is None or not shape.any(*_NOT_IN_COLUMNS)):
        found = _json_records(raw, kind)
        if found is not None and (shape is None or not _may_lack_defaults(found, shape)):
            return found
    change, parse_float = (
        (from_json(shape, out_of_range), Decimal) if shape is not None else ((lambda value: value), float)
    )
    values = []
    for payload in raw.to_pylist():
        try:
            parsed = None if payload is None else json.loads(payload, parse_float=parse_float)
            values.append(change(parsed))
        except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
            raise BadValue(f"it is not JSON of its schema ({error})") from None
    return _array(values, kind)


def _may_lack_defaults(values: pa.Array, shape: Shape) -> bool:
    """Whether a field is null that has a default: the compiled reader does not tell null from absent."""
    if shape.kind == "union":
        return any(_may_lack_defaults(values, part) for part in shape.parts[:1])
    if shape.kind == "array":
        return _may_lack_defaults(values.flatten(), shape.parts[0])
    if shape.kind != "record":
        return False
    parts = dict(zip(shape.fields, shape.parts, strict=True))
    with_default = {shape.fields[index] for index, _ in shape.defaults}
    for each, column in zip(values.type, values.flatten(), strict=True):
        if each.name in with_default and column.null_count > values.null_count:
            return True
        if each.name in parts and _may_lack_defaults(column, parts[each.name]):
            return True
    return False


def _json_records(raw: pa.BinaryArray, kind: pa.StructType) -> pa.Array | None:
    """None: not possible. Each value has to be one object, or lines would not be values."""
    if raw.null_count or not pc.all(pc.and_(pc.starts_with(raw, b"{"), pc.ends_with(raw, b"}"))).as_py():
        return None
    try:
        table = pa.json.read_json(
            io.BytesIO(b"\n".join(raw.to_pylist())),
            parse_options=pa.json.ParseOptions(
                explicit_schema=pa.schema(list(kind)),
                newlines_in_values=True,
                unexpected_field_behavior="ignore",
            ),
            read_options=pa.json.ReadOptions(use_threads=False, block_size=1 << 30),
        )
    except pa.ArrowException:
        return None
    if table.num_rows != len(raw) or not kind.num_fields:
        return None
    arrays = [table.column(each.name).combine_chunks() for each in kind]
    return pa.StructArray.from_arrays(arrays, fields=list(kind))


def _split_pairs(raw: pa.BinaryArray) -> tuple[pa.BinaryArray, pa.BinaryArray]:
    """An inline pair: size i32 (-1: none), key, size i32, value."""
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    for pair in raw.to_pylist():
        if pair is None:
            keys.append(None)
            values.append(None)
            continue
        rest, parts = pair, []
        for _ in range(2):
            size = int.from_bytes(rest[:4], "big", signed=True)
            if len(rest) < 4 or size > len(rest) - 4:
                raise BadValue("a key-value pair that ends too early")
            parts.append(None if size < 0 else rest[4 : 4 + size])
            rest = rest[4 + max(size, 0) :]
        keys.append(parts[0])
        values.append(parts[1])
    return pa.array(keys, pa.binary()), pa.array(values, pa.binary())
