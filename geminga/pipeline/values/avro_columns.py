"""AVRO values into columns, all rows at once: for the schemas that most topics have.

`column_decoder` says whether a pair of schemas is one of those: every type but recursive records. A
field that is not asked for may be of any type. What is not supported here is decoded row by row, by fastavro;
where both do it, they give the same values. Only this one tells which type of a union of several a value had:
fastavro gives a number, or a text, and takes the first type of the reader's union that a promotion leads to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from geminga.pipeline.columns.protobuf_columns import Bytes as Codes
from geminga.pipeline.values.avro_cursor import (
    LEFT_OVER,
    REASONS,
    ArrayWalk,
    Values,
    Walk,
    walk_all,
    walk_enum,
    walk_nothing,
    walk_number,
    walk_span,
    walk_union,
    walk_width,
)
from geminga.pipeline.values.avro_readers import (
    Booleans,
    Branch,
    Bytes,
    Cast,
    Dates,
    Decimals,
    Default,
    Enums,
    Floats,
    Integers,
    Items,
    Lists,
    Maps,
    Member,
    Nulls,
    Optional,
    Passed,
    Reader,
    Record,
    Skip,
    Times,
    Union,
    skip_all,
    skip_enum,
    skip_items,
    skip_nothing,
    skip_number,
    skip_span,
    skip_union,
    skip_width,
)
from geminga.pipeline.values.avro_shapes import NAMED, UNITS_US
from geminga.pipeline.values.rules import OutOfRange

_WIDTHS = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_PROMOTED = {"int": ("long", "float", "double"), "long": ("float", "double"), "float": ("double",),
             "string": ("bytes",), "bytes": ("string",)}  # fmt: skip
_NUMBERS = {"int": pa.int32(), "long": pa.int64(), "float": pa.float32(), "double": pa.float64()}
_STEPS_MAX = 20_000
"""Records that are twice in each other would take for ever to plan."""
ROWS_MIN = 48
"""With fewer rows, fastavro is faster: a step costs some microseconds, whatever it is for."""


@dataclass
class Decoded:
    column: pa.Array
    """Null where a value was null or is refused."""
    codes: Codes
    """Of each row: 0, or why it is refused."""

    def reason(self, row: int) -> str:
        return REASONS[int(self.codes[row])]


@dataclass(frozen=True)
class AvroColumn:
    """Decodes values of one writer's schema into a column."""

    kind: pa.DataType
    reader: Reader
    knows_more: bool
    """Whether fastavro would give other values: this one then is to decode all, however few they are."""

    def __call__(self, raw: pa.BinaryArray) -> Decoded:
        given = raw.drop_null() if raw.null_count else raw
        values = Values(given)
        cursor = values.cursor()
        column = self.reader(cursor, None)
        left = cursor.at < cursor.end
        if left.any():
            cursor.refuse(left, LEFT_OVER)
        codes = values.codes
        places = np.arange(len(given))
        if not raw.null_count:
            if codes.any():
                column = column.take(pa.array(places, mask=codes != 0))
            return Decoded(column, codes)
        valid = np.asarray(raw.is_valid())
        of_rows, all_codes = np.zeros(len(raw), np.int64), np.zeros(len(raw), np.uint8)
        of_rows[valid], all_codes[valid] = places, codes
        return Decoded(column.take(pa.array(of_rows, mask=~valid | (all_codes != 0))), all_codes)


def column_decoder(
    writer: Any, reader: Any, kind: pa.DataType, out_of_range: OutOfRange = "clamp"
) -> AvroColumn | None:
    """Of two schemas that fastavro has parsed, and the type of the column that is asked for. None: these
    are not supported.
    """
    try:
        plan = _Plan(_named(writer, {}), _named(reader, {}), out_of_range)
        made = plan.read(writer, reader, kind)
        return AvroColumn(kind, made, plan.knows_more)
    # fastavro's parser lets pass much that means nothing, and says so only when a value is read.
    except (_Unsupported, KeyError, TypeError, AttributeError, ValueError, RecursionError):
        return None


class _Unsupported(Exception):
    pass


class _Mismatch(_Unsupported):
    """The reader can make nothing of any value of this type of the writer's."""


def _named(schema: Any, found: dict[str, Any]) -> dict[str, Any]:
    """All named types in a schema, by their full names."""
    if isinstance(schema, list):
        for each in schema:
            _named(each, found)
    elif isinstance(schema, dict):
        if schema["type"] in NAMED:
            found[schema["name"]] = schema
        for each in schema.get("fields", ()):
            _named(each["type"], found)
        for part in ("items", "values"):
            if part in schema:
                _named(schema[part], found)
    return found


class Past(NamedTuple):
    """How to get behind a value."""

    skip: Skip
    """In all rows together."""
    walk: Walk | None
    """In one. None: arrays in it may have items that take no bytes, which have to be counted."""


PAST_SPAN = Past(skip_span, walk_span)


def _in_a_row(parts: Sequence[Past]) -> Past:
    return Past(skip_all([each.skip for each in parts]), _of_all(walk_all, parts))


def _of_all(make: Callable[[Sequence[Walk]], Walk], parts: Sequence[Past]) -> Walk | None:
    walks = [each.walk for each in parts if each.walk is not None]
    return make(walks) if len(walks) == len(parts) else None


@dataclass
class _Plan:
    writers: dict[str, Any]
    readers: dict[str, Any]
    out_of_range: OutOfRange
    knows_more: bool = False
    """Whether there are values that fastavro would give in another way."""
    _open: list[str] = field(default_factory=list)
    """Records that are being planned: one in itself is not supported."""
    _steps: int = 0

    def _resolved(self, schema: Any, named: dict[str, Any]) -> Any:
        """A union as a list, anything else as an object with a type."""
        if isinstance(schema, list):
            return schema
        kind = schema["type"] if isinstance(schema, dict) else schema
        if not isinstance(kind, str):
            raise _Unsupported
        self._steps += 1
        if self._steps > _STEPS_MAX:
            raise _Unsupported
        if kind in _PRIMITIVES or kind in NAMED or kind in ("array", "map"):
            return schema if isinstance(schema, dict) else {"type": kind}
        if kind not in named:
            raise _Unsupported
        return named[kind]

    def read(self, writer: Any, reader: Any, kind: pa.DataType) -> Reader:
        writes, reads = self._resolved(writer, self.writers), self._resolved(reader, self.readers)
        if isinstance(writes, list):
            return self._union(writes, reads, kind)
        if isinstance(reads, list):
            return self._into_union(writes, [self._resolved(each, self.readers) for each in reads], kind)
        if not self._matches(writes, reads):
            raise _Mismatch
        what = writes["type"]
        if writes.get("logicalType") is not None or reads.get("logicalType") is not None:
            return self._logical(writes, reads, kind)
        if what in _PRIMITIVES:
            self.knows_more |= (what, reads["type"]) == ("bytes", "string")
            return _primitive(what, reads["type"], kind)
        if what == "record":
            return self._record(writes, reads, kind)
        if what == "enum":
            if kind != pa.string() or not writes["symbols"]:
                raise _Unsupported
            known, default = frozenset(reads["symbols"]), reads.get("default") or None
            symbols = tuple(each if each in known else default for each in writes["symbols"])
            return Enums(kind, symbols)
        if what == "fixed":
            if kind != pa.binary():
                raise _Unsupported
            return Bytes(kind, width=int(writes["size"]))
        if what == "array" and pa.types.is_list(kind):
            return Lists(
                kind, self._items(writes), self.read(writes["items"], reads["items"], kind.value_type)
            )
        if what == "map" and pa.types.is_map(kind) and kind.key_type == pa.string():
            return Maps(
                kind, self._items(writes), self.read(writes["values"], reads["values"], kind.item_type)
            )
        raise _Unsupported

    def _matches(self, writes: Any, reads: Any) -> bool:
        """Whether a type of the reader's takes what the writer's type has."""
        what, wanted = writes["type"], reads["type"]
        if what in _PRIMITIVES:
            return bool(what == wanted or wanted in _PROMOTED.get(what, ()))
        if what != wanted:
            return False
        if what not in NAMED:
            return True
        if what == "fixed" and writes["size"] != reads["size"]:
            return False
        name, aliases = writes["name"], reads.get("aliases", ())
        last = name.rpartition(".")[2]
        return bool(last == reads["name"].rpartition(".")[2] or name in aliases or last in aliases)

    def _into_union(self, writes: Any, reads: list[Any], kind: pa.DataType) -> Reader:
        """One type of the writer's, of which the reader makes one of several."""
        at = self._branch_of(writes, reads)
        if at is None:
            raise _Mismatch
        values = [each for each in reads if each["type"] != "null"]
        if len(values) == 1:
            return self.read(writes, reads[at], kind)
        branch = self._branch(writes, reads, at, kind)
        return branch.reader if branch.field is None else Member(kind, branch)

    def _branch_of(self, writes: Any, reads: list[Any]) -> int | None:
        """Which type of the reader's union takes values of the writer's type, by Java's rule: the same type,
        of named ones that of the same full name, else the first promotion. Before that, of named ones the
        first of the same short name, where Java takes any record whose fields fit.
        """
        what = writes["type"]
        same = [at for at, each in enumerate(reads) if each["type"] == what]
        if what in NAMED:
            name = writes["name"]
            known = [at for at in same if name == reads[at]["name"] or name in reads[at].get("aliases", ())]
            same = known or [at for at in same if self._matches(writes, reads[at])]
        if same:
            return same[0]
        wider = _PROMOTED.get(what, ())
        return next((at for at, each in enumerate(reads) if each["type"] in wider), None)

    def _branch(self, writes: Any, reads: list[Any], at: int, kind: pa.DataType) -> Branch:
        """Of a reader's union of several types, `at` of which takes the writer's."""
        self.knows_more = True
        if pa.types.is_struct(kind):
            number = sum(each["type"] != "null" for each in reads[:at])
            index = kind.get_field_index(f"member{number}")
            if index < 0:  # the user's own schema leaves it out
                return Branch(Passed(self.skip(writes)), index)
            return Branch(self.read(writes, reads[at], kind.field(index).type), index)
        own = _NUMBERS.get(reads[at]["type"])
        # Of another type, which the user's own schema may ask for, a cast would fail or make something up.
        if own is None or kind != (pa.int64() if pa.types.is_integer(own) else pa.float64()):
            raise _Unsupported
        inner = self.read(writes, reads[at], own)
        return Branch(inner if own == kind else Cast(inner, kind))

    def _union(self, writes: list[Any], reads: Any, kind: pa.DataType) -> Reader:
        branches = [self._resolved(each, self.writers) for each in writes]
        if not all(isinstance(each, dict) for each in branches):
            raise _Unsupported
        taken = [
            self._resolved(each, self.readers) for each in (reads if isinstance(reads, list) else [reads])
        ]
        values = [at for at, each in enumerate(branches) if each["type"] != "null"]
        if not values:
            raise _Unsupported
        several = sum(each["type"] != "null" for each in taken) > 1
        has_null = {"type": "null"} in taken
        if len(values) == 1 and len(branches) <= 2:
            inner = self.read(branches[values[0]], reads, kind)
            return Optional(inner, len(branches), values[0], kind, null_is_wrong=not has_null)
        found: list[Branch | Nulls | None] = []
        depth = len(self._open)
        for each in branches:
            at = self._branch_of(each, taken)
            try:
                if at is None:
                    found.append(None)
                elif each["type"] == "null":
                    found.append(Nulls(kind))
                elif several:
                    found.append(self._branch(each, taken, at, kind))
                else:
                    found.append(Branch(self.read(each, taken[at], kind)))
            except _Mismatch:  # an error where a value is of this type, as in Java
                del self._open[depth:]
                found.append(None)
        return Union(kind, tuple(found))

    def _logical(self, writes: Any, reads: Any, kind: pa.DataType) -> Reader:
        logical, other = writes.get("logicalType"), reads.get("logicalType")
        pair = (writes["type"], logical), (reads["type"], other)
        if pair[0] == pair[1] == ("int", "date") and kind == pa.date32():
            return Dates(kind)
        if {writes["type"], reads["type"]} == {"long"}:
            # The number of an older version is of the unit that the latest names, as in Java.
            if other is None and kind == pa.int64():
                return Integers(kind)
            if (
                other in UNITS_US
                and pa.types.is_timestamp(kind)
                and kind.unit == "us"
                and kind.tz is not None
            ):
                return Times(kind, UNITS_US[other], self.out_of_range)
        elif logical == other == "decimal" and writes["type"] == reads["type"]:
            scale = reads.get("scale", 0)
            if scale != writes.get("scale", 0) or not pa.types.is_decimal128(kind):
                raise _Unsupported
            if (reads.get("precision"), scale) == (kind.precision, kind.scale):
                return Decimals(kind, int(writes["size"]) if writes["type"] == "fixed" else None)
        raise _Unsupported

    def _record(self, writes: Any, reads: Any, kind: pa.DataType) -> Reader:
        if not pa.types.is_struct(kind):
            raise _Unsupported
        self._enter(writes["name"])
        wanted = {each.name: index for index, each in enumerate(kind)}
        if len(wanted) < kind.num_fields:
            raise _Unsupported
        missing = {each["name"]: each for each in reads["fields"]}
        aliased = {alias: each for each in reads["fields"] for alias in each.get("aliases", ())}
        if not wanted.keys() <= missing.keys():
            raise _Unsupported
        steps: list[tuple[Reader, int] | Skip] = []
        for each in writes["fields"]:
            taken = missing.get(each["name"]) or aliased.get(each["name"])
            if taken is None:
                steps.append(self.skip(each["type"]))
                continue
            if missing.pop(taken["name"], None) is None:  # two of the writer's fields are one of the reader's
                raise _Unsupported
            index = wanted.get(taken["name"])
            if index is None:
                steps.append(self.skip(each["type"]))
            else:
                steps.append((self.read(each["type"], taken["type"], kind.field(index).type), index))
        defaults = []
        for name, each in missing.items():
            if "default" not in each:
                raise _Mismatch
            if name in wanted:
                of = kind.field(wanted[name]).type
                defaults.append((self._default(each, of), wanted[name]))
        self._open.pop()
        return Record(kind, tuple(steps), tuple(defaults))

    def _default(self, of: Any, kind: pa.DataType) -> Reader:
        """Exactly what a row by row decoder would give the column."""
        default = self._default_value(of["type"], of["default"], kind)
        try:
            value = pa.array([default], kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            raise _Unsupported from None
        return Default(value)

    def _default_value(self, of: Any, default: Any, kind: pa.DataType) -> Any:
        of = self._resolved(of, self.readers)
        if default is None:
            return None
        if isinstance(of, list):
            values = [each for each in of if each not in ("null", {"type": "null"})]
            if not values:
                return default
            self.knows_more |= len(values) > 1
            # Of the first type, as AVRO wants it.
            if len(values) == 1 or not pa.types.is_struct(kind):
                return self._default_value(values[0], default, kind)
            index = kind.get_field_index("member0")
            of_member = pa.null() if index < 0 else kind.field(index).type
            return {"member0": self._default_value(values[0], default, of_member)}
        if of.get("logicalType") == "timestamp-millis":
            return default * UNITS_US["timestamp-millis"]
        if of["type"] == "float" and pa.types.is_float64(kind):
            return float(np.float32(default))  # of a union that became double
        if of["type"] == "array" and pa.types.is_list(kind):
            return [self._default_value(of["items"], each, kind.value_type) for each in default]
        if of["type"] == "map" and pa.types.is_map(kind):
            return [
                (key, self._default_value(of["values"], each, kind.item_type))
                for key, each in default.items()
            ]
        if of["type"] == "record" and pa.types.is_struct(kind):
            types = {each["name"]: each["type"] for each in of["fields"]}
            wanted = {each.name: each.type for each in kind}
            return {
                name: self._default_value(types[name], each, wanted[name])
                for name, each in default.items()
                if name in types and name in wanted
            }
        return default

    def _enter(self, name: str) -> None:
        if name in self._open:
            raise _Unsupported
        self._open.append(name)

    def skip(self, writer: Any) -> Skip:
        return self._past(writer).skip

    def _past(self, writer: Any) -> Past:
        writes = self._resolved(writer, self.writers)
        if isinstance(writes, list):
            parts = [self._past(each) for each in writes]
            return Past(skip_union([each.skip for each in parts]), _of_all(walk_union, parts))
        what = writes["type"]
        width = self._width(writes)
        if width == 0:
            return Past(skip_nothing, walk_nothing)
        if width is not None:
            return Past(skip_width(width), walk_width(width))
        if what in ("int", "long"):
            return Past(skip_number, walk_number)
        if what in ("bytes", "string"):
            return PAST_SPAN
        if what == "enum" and writes["symbols"]:
            symbols = len(writes["symbols"])
            return Past(skip_enum(symbols), walk_enum(symbols))
        if what == "record":
            self._enter(writes["name"])
            parts = [self._past(each["type"]) for each in writes["fields"]]
            self._open.pop()
            return _in_a_row(parts)
        if what in ("array", "map"):
            found = self._items(writes)
            return Past(skip_items(found), found.walk)
        raise _Unsupported

    def _items(self, writes: Any) -> Items:
        part = writes["items"] if writes["type"] == "array" else writes["values"]
        past, width, smallest = self._past(part), self._width(part), self._smallest(part)
        if writes["type"] == "map":
            past, width, smallest = _in_a_row([PAST_SPAN, past]), None, smallest + 1
        walk = ArrayWalk(past.walk, width, smallest) if past.walk is not None and smallest else None
        return Items(past.skip, width, smallest, walk)

    def _width(self, writer: Any) -> int | None:
        """What every value takes; None: it varies."""
        writes = self._resolved(writer, self.writers)
        if isinstance(writes, list):
            return None
        if writes["type"] == "fixed":
            return int(writes["size"])
        if writes["type"] != "record":
            return _WIDTHS.get(writes["type"])
        self._enter(writes["name"])
        widths = [self._width(each["type"]) for each in writes["fields"]]
        self._open.pop()
        known = [each for each in widths if each is not None]
        return sum(known) if len(known) == len(widths) else None

    def _smallest(self, writer: Any) -> int:
        """What a value takes at least."""
        writes = self._resolved(writer, self.writers)
        if isinstance(writes, list) or writes["type"] != "record":
            width = self._width(writes)
            return 1 if width is None else width
        return sum(self._smallest(each["type"]) for each in writes["fields"])


def _primitive(what: str, wanted: str, kind: pa.DataType) -> Reader:
    if what == "null" and kind == pa.null():
        return Nulls(kind)
    if what == "boolean" and kind == pa.bool_():
        return Booleans()
    if kind == _NUMBERS.get(wanted):
        if what in ("int", "long"):
            return Integers(kind, as_float=wanted in ("float", "double"))
        return Floats(kind, from_float=what == "float")
    if wanted in ("bytes", "string") and kind == (pa.binary() if wanted == "bytes" else pa.string()):
        return Bytes(kind, is_text="string" in (what, wanted), replaces=what == "bytes")
    raise _Unsupported
