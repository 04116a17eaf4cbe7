"""Payloads into typed columns, as a topic's schema says."""

from __future__ import annotations

import io
import json
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from geminga.pipeline.client.connection import Connection
from geminga.pipeline.client.topics import full_name
from geminga.pipeline.columns.batches import Messages, select
from geminga.pipeline.columns.columns import VALUE, Values, decoded_keys, payloads, text
from geminga.pipeline.columns.payloads import entry_text
from geminga.pipeline.columns.protobuf_columns import Bytes, Ints, Spans
from geminga.pipeline.errors import SET_RAW_VALUE, Access, Option
from geminga.pipeline.values.avro_checks import Check
from geminga.pipeline.values.avro_columns import ROWS_MIN, AvroColumn, column_decoder
from geminga.pipeline.values.avro_cursor import NO_TEXT, REASONS, TOO_SHORT, Refused
from geminga.pipeline.values.avro_shapes import (
    BadValue,
    SchemaMismatch,
    Shape,
    part_of_kind,
    readable_definition,
    shape_of,
    with_values,
)
from geminga.pipeline.values.json_columns import has_other_symbols, json_records, parsed
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


Versions = list[tuple[bytes | None, Ints]]
"""The rows of each version of the schema; None: their entries name none."""


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
        # Not by the names of the columns: the only field of a record may be named `value`.
        self._is_record = (
            schema.kind in (_TYPE.Avro, _TYPE.Json)
            and not schema.is_raw
            and shape_of(definition_of(schema)).kind == "record"
        )
        # Whether a value is bad must not depend on which columns a query asks for.
        self._wanted = wanted if rules.mode == "failfast" else _with_all(wanted, self._makes)
        self._rules = rules
        self._corrupt = next((each for each in wanted if each.name == rules.corrupt_column), None)
        self._writers: dict[tuple[bytes, int | None], Readable] = {}
        self._readers: dict[tuple[bytes, pa.DataType], tuple[Readable, Readable, Shape]] = {}
        self._columns: dict[tuple[int, int], tuple[Readable, Readable, AvroColumn | None]] = {}
        self._checked: set[bytes] = set()
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
        except BadValue as error:
            if len(messages) == 1 and self._rules.mode == "failfast":
                raise self._named(messages, error) from None
            columns, bad = self._one_by_one(messages, error)
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

    def _one_by_one(self, messages: Messages, error: BadValue) -> tuple[dict[str, pa.Array], Any]:
        """The columns, null where a value is bad, and which are. Halves what fails until the bad ones are
        left, if `error` does not say which are: most values are good where any are.
        """
        if error.rows is not None and self._rules.mode != "failfast":
            return self._without(messages, error.rows)
        bad: list[bool] = []
        pieces: list[dict[str, pa.Array] | int] = []

        def halve(failed: Messages) -> None:
            if len(failed) == 1:
                bad.append(True)
                pieces.append(1)
                return
            # Of what has been chosen, not of all: the choice of one row among many costs as much as they do.
            is_first = np.arange(len(failed)) < len(failed) // 2
            for some in (select(failed, is_first), select(failed, ~is_first)):
                try:
                    pieces.append(self._decoded(some))
                    bad.extend([False] * len(some))
                except BadValue as error:
                    if len(some) == 1 and self._rules.mode == "failfast":
                        raise self._named(some, error) from None
                    halve(some)

        halve(messages)
        decoded = [piece for piece in pieces if isinstance(piece, dict)]
        types = {name: column.type for name, column in decoded[0].items()} if decoded else self._types()
        columns = {
            name: pa.concat_arrays(
                [piece[name] if isinstance(piece, dict) else pa.nulls(piece, kind) for piece in pieces]
            )
            for name, kind in types.items()
        }
        return columns, np.array(bad)

    def _without(self, messages: Messages, rows: Ints) -> tuple[dict[str, pa.Array], Any]:
        """As `_one_by_one`, without these bad ones; others may be bad too."""
        good = np.ones(len(messages), bool)
        good[rows] = False
        if not good.any():
            return {name: pa.nulls(len(messages), kind) for name, kind in self._types().items()}, ~good
        rest, bad = select(messages, good), ~good
        try:
            columns = self._decoded(rest)
        except BadValue as error:
            columns, bad[good] = self._one_by_one(rest, error)
        places = pa.array(np.cumsum(good) - 1, mask=~good)
        return {name: column.take(places) for name, column in columns.items()}, bad

    def _types(self) -> dict[str, pa.DataType]:
        return {each.name: each.type for each in self._wanted if each.name in self._makes}

    def _named(self, message: Messages, error: BadValue) -> BadValue:
        """`message` is one alone."""
        entry = entry_text(message.entries, int(message.entry[0]))
        index = max(int(message.batch_index[0]), 0)
        return BadValue(
            f"{self._topic}: the value of message {entry}:{index} is not what its schema says: ",
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
        versions = _by_version(messages)
        if schema.kind != _TYPE.Avro:
            self._check(versions)
        if schema.kind == _TYPE.KeyValue:
            return self._pair(messages, versions, raw, wanted)
        if self._is_record:
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
        self,
        messages: Messages,
        versions: Versions,
        raw: pa.Array,
        wanted: dict[str, pa.DataType],
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
        versions: Versions,
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
        versions: Versions,
        *,
        part: int | None = None,
    ) -> pa.Array:
        if schema.kind == _TYPE.Json:
            return json_values(raw, kind, shape_of(definition_of(schema)), self._rules.out_of_range)
        return self._avro(schema, raw, kind, versions, part)

    def _avro(
        self,
        schema: TopicSchema,
        raw: pa.Array,
        kind: pa.DataType,
        versions: Versions,
        part: int | None = None,
    ) -> pa.Array:
        """`versions`: the rows of each."""
        latest, reader, shape = self._reader(schema, kind)
        parts = []
        for version, rows in versions:
            writer = self._writer(version, latest, part)
            own = raw if len(versions) == 1 else raw.take(pa.array(rows))
            found = self._columns_of(writer, reader, kind)
            if found is None or (len(own) < ROWS_MIN and not found.knows_more):
                parts.append(self._row_by_row(own, writer, reader, shape, kind))
                continue
            decoded = found(own)
            if decoded.codes.any():
                wrong = np.flatnonzero(decoded.codes)
                bad = BadValue(decoded.reason(int(wrong[0])))
                bad.rows = wrong if len(versions) == 1 else rows[wrong]
                raise bad
            parts.append(decoded.column)
        if len(parts) == 1:
            return parts[0]
        order = np.argsort(np.concatenate([np.zeros(0, np.int64), *(rows for _, rows in versions)]))
        return pa.concat_arrays(parts).take(pa.array(order)) if parts else pa.array([], kind)

    def _reader(self, schema: TopicSchema, kind: pa.DataType) -> tuple[Readable, Readable, Shape]:
        """What `schema` says, what to read of it for `kind`, and the shape of that."""
        known = self._readers.get((schema.definition, kind))
        if known is None:
            latest = _readable(schema)
            known = self._readers[schema.definition, kind] = (latest, *_narrowed(schema, latest, kind))
        return known

    def _columns_of(self, writer: Readable, reader: Readable, kind: pa.DataType) -> AvroColumn | None:
        known = self._columns.get((id(writer), id(reader)))
        if known is None:
            if len(self._columns) >= _VERSIONS_MAX:
                self._columns.clear()
            found = column_decoder(writer.in_columns, reader.in_columns, kind, self._rules.out_of_range)
            known = (writer, reader, found)  # both are kept, so that their ids are theirs
            self._columns[id(writer), id(reader)] = known
        return known[2]

    def _row_by_row(
        self, raw: pa.Array, writer: Readable, reader: Readable, shape: Shape, kind: pa.DataType
    ) -> pa.Array:
        import fastavro

        change = from_avro(shape, self._rules.out_of_range)
        found: list[Any] = []
        for payload in raw.to_pylist():
            if payload is None:
                found.append(None)
                continue
            try:
                writer.check(payload)
                value = fastavro.schemaless_reader(
                    io.BytesIO(payload), writer.by_row, reader.by_row, return_named_type=change is not None
                )
                found.append(value if change is None else change(value))
            except Refused as error:
                raise BadValue(REASONS[error.reason]) from None
            except fastavro.read.SchemaResolutionError as error:
                raise BadValue(f"its schema cannot be read as the latest one: {error}") from None
            except _BAD_AVRO as error:
                raise BadValue(_reason(error)) from None
        return _array(found, kind)

    def _writer(self, version: bytes | None, latest: Readable, part: int | None) -> Readable:
        """The schema that a message, or this part of its pair, was written with."""
        if version is None:
            return latest
        known = self._writers.get((version, part))
        if known is None:
            known = self._of_version(self._fetched(version), latest, part)
            if len(self._writers) >= _VERSIONS_MAX:
                self._writers.clear()
            self._writers[version, part] = known
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

    def _check(self, versions: Versions) -> None:
        for version, _ in versions:
            if version is not None and version != self._latest and version not in self._checked:
                self._fetched(version)
                self._checked.add(version)

    def _of_version(self, schema: TopicSchema, latest: Readable, part: int | None) -> Readable:
        if part is not None:
            schema = schema.parts()[part]
        found = _readable(schema)
        for ours, its in zip(latest[:2], found[:2], strict=True):
            records = isinstance(its, dict) and isinstance(ours, dict)
            if records and its["type"] == ours["type"] == "record":
                its["name"] = ours["name"]  # a class that was renamed is still what the values are
        return found


def _with_all(wanted: pa.Schema, makes: dict[str, pa.DataType]) -> pa.Schema:
    """All columns of values, those that are wanted in the type in which they are."""
    return pa.schema(
        [wanted.field(name) if name in wanted.names else (name, kind) for name, kind in makes.items()]
    )


def _by_version(messages: Messages) -> Versions:
    spans, data = messages.entries.schema_version, messages.entries.data
    if len(messages) and _are_same(data, spans):
        at, size = int(spans.at[0]), int(spans.size[0])
        version = data[at : at + size].tobytes() if at >= 0 else None
        return [(version, np.arange(len(messages)))]
    entries, of_row = np.unique(messages.entry, return_inverse=True)
    numbers: dict[bytes | None, int] = {}
    of_entry = np.zeros(len(entries), np.int64)
    for index, (at, size) in enumerate(
        zip(spans.at[entries].tolist(), spans.size[entries].tolist(), strict=True)
    ):
        version = data[at : at + size].tobytes() if at >= 0 else None
        of_entry[index] = numbers.setdefault(version, len(numbers))
    found = of_entry[of_row]
    return [(version, np.flatnonzero(found == number)) for version, number in numbers.items()]


def _are_same(data: Bytes, spans: Spans) -> bool:
    """Whether all spans have the same bytes, or all are absent. Most topics have one version; to look at each
    entry by itself would cost as much as decoding numbers does.
    """
    present = spans.present
    if not present.any():
        return True
    if not present.all() or (spans.size != spans.size[0]).any():
        return False
    table = data[spans.at[:, np.newaxis] + np.arange(int(spans.size[0]))]
    return bool((table == table[0]).all())


class Readable(NamedTuple):
    """An AVRO schema as its two decoders take it."""

    in_columns: Any
    by_row: Any
    """For fastavro: times are the numbers that they are, since Python's own end with the year 9999."""
    check: Check
    """Of what fastavro is to read."""


def _readable(schema: TopicSchema) -> Readable:
    """Raises `SchemaMismatch`."""
    from fastavro.schema import SchemaParseException, UnknownType, parse_schema

    definition = definition_of(schema)
    try:
        in_columns, by_row = (
            with_values(parse_schema(readable_definition(definition, times=times))) for times in (True, False)
        )
        return Readable(in_columns, by_row, Check(by_row))
    except (SchemaParseException, UnknownType, *_BAD_AVRO) as error:
        raise SchemaMismatch(
            f"a schema that is not AVRO's ({type(error).__name__}: {error}); ", SET_RAW_VALUE, " to get bytes"
        ) from None


def _narrowed(schema: TopicSchema, latest: Readable, kind: pa.DataType) -> tuple[Readable, Shape]:
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


def _reason(error: Exception) -> str:
    """Not the decoder's own texts, which name its parts in memory."""
    if isinstance(error, EOFError):
        return REASONS[TOO_SHORT]
    if isinstance(error, UnicodeDecodeError):
        return REASONS[NO_TEXT]
    if isinstance(error, RecursionError):
        return "it is in itself too often, beyond the limit of recursion"
    return f"it is not AVRO of its schema ({type(error).__name__})"


_BAD_COLUMN = (pa.ArrowException, TypeError, ValueError, OverflowError)


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, kind)
    except _BAD_COLUMN as error:
        raise BadValue(_misfit(values, kind, error)) from None


def _misfit(values: list[Any], kind: pa.DataType, error: Exception) -> str:
    """With the first field that does not fit, if they are records."""
    if pa.types.is_struct(kind) and all(value is None or isinstance(value, dict) for value in values):
        for field in kind:
            try:
                pa.array([None if value is None else value.get(field.name) for value in values], field.type)
            except _BAD_COLUMN as of_field:
                return f"field {field.name!r} does not fit the column type {field.type}: {of_field}"
    return f"it does not fit the column type {kind}: {error}"


def json_values(
    raw: pa.BinaryArray, kind: pa.DataType, shape: Shape | None = None, out_of_range: OutOfRange = "clamp"
) -> pa.Array:
    """Records by compiled code; whatever that refuses, one by one, as `shape` says. Raises `BadValue`."""
    if pa.types.is_struct(kind):
        found = json_records(raw, kind, shape)
        if found is not None and (
            shape is None or not (_may_lack_defaults(found, shape) or has_other_symbols(found, shape))
        ):
            return found
    change, parse_float = (
        (from_json(part_of_kind(shape, kind), out_of_range), Decimal)
        if shape is not None
        else ((lambda value: value), float)
    )
    values: list[Any] = []
    reason, wrong = "", []
    for row, payload in enumerate(raw.to_pylist()):
        try:
            values.append(change(None if payload is None else _parsed(payload, parse_float)))
        except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
            reason = reason or f"it is not JSON of its schema ({error})"
            wrong.append(row)
    if wrong:
        bad = BadValue(reason)
        bad.rows = np.array(wrong)
        raise bad
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


def _parsed(payload: bytes, parse_float: type[float | Decimal]) -> Any:
    try:
        return parsed(payload, exact=parse_float is Decimal)
    except msgspec.DecodeError:
        return json.loads(payload, parse_float=parse_float)


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
