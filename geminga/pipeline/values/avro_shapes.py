"""AVRO definitions (JSON schemas have them too) as column types, with what their values need.

Types are those of the JVM connector: a union of several types is a struct of member0, member1... of which one
is set, int with long is bigint, float with double is double. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from geminga.pipeline.errors import SET_RAW_VALUE, PipelineError

TIME = pa.timestamp("us", tz="UTC")
DECIMAL_DIGITS_MAX = 38
"""What Spark has."""

_PRIMITIVES: dict[str, pa.DataType] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL: dict[tuple[str, str], pa.DataType] = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): TIME,
    ("long", "timestamp-micros"): TIME,
}
UNITS_US = {"timestamp-millis": 1000, "timestamp-micros": 1}
"""Of a time as a number."""
_WIDENED = (({"int", "long"}, "long"), ({"float", "double"}, "double"))
NAMED = ("record", "enum", "fixed")
NO_NAMESPACE = "without_namespace."
"""Before names without a namespace, where the AVRO decoder needs one."""


class SchemaMismatch(PipelineError):
    """Values that are not what the schema says, or topics whose schemas differ."""


class BadValue(SchemaMismatch):
    """A value that is not of its schema, which the option `mode` is about; others beside it may be right."""

    rows: npt.NDArray[np.int64] | None = None
    """Some that are bad, of those that were decoded together; None: it is not known which."""


@dataclass(frozen=True)
class Shape:
    """A type, its names resolved."""

    kind: str
    """As AVRO calls it."""
    arrow: pa.DataType
    logical: str | None = None
    """Only those that change the column type."""
    plain_logical: str | None = None
    """The others: values are columns of their plain type."""
    name: str = ""
    """The full one of a record, an enum or a fixed."""
    parts: tuple[Shape, ...] = ()
    """Of an array or a map its one type, of a record those of its fields, of a union those beside null."""
    fields: tuple[str, ...] = ()
    defaults: tuple[tuple[int, Any], ...] = ()
    """Of a record: the defaults that are not null, as the definition writes them, with the field's index."""
    symbols: frozenset[str] = frozenset()
    """Of an enum."""

    @property
    def has_members(self) -> bool:
        """A union that became a struct."""
        return self.kind == "union" and len(self.parts) > 1 and pa.types.is_struct(self.arrow)

    def any(self, *kinds: str) -> bool:
        """Whether it or anything in it is of these kinds; "members" is a union that became a struct."""
        return (
            self.kind in kinds
            or ("members" in kinds and self.has_members)
            or ("logical" in kinds and self.logical is not None)
            or any(part.any(*kinds) for part in self.parts)
        )


def shape_of(definition: Any) -> Shape:
    """Raises `SchemaMismatch` for what Spark has no type for."""
    try:
        return _Shapes().of(definition, "")
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise SchemaMismatch(
            f"an AVRO definition that means nothing ({type(error).__name__}: {error}); ", SET_RAW_VALUE
        ) from None


class _Shapes:
    """Knows the names that were defined so far; None: of a record that is being defined."""

    def __init__(self) -> None:
        self._named: dict[str, Shape | None] = {}

    def of(self, definition: Any, namespace: str) -> Shape:
        if isinstance(definition, list):
            return self._union([self.of(each, namespace) for each in definition])
        if isinstance(definition, str):
            return self._by_name(definition, namespace)
        kind = definition["type"]
        if not isinstance(kind, str):
            return self.of(kind, namespace)
        if kind in NAMED or kind == "error":
            return self._define(definition, "record" if kind == "error" else kind, namespace)
        if kind == "array":
            part = self.of(definition["items"], namespace)
            return Shape(kind, pa.list_(part.arrow), parts=(part,))
        if kind == "map":
            part = self.of(definition["values"], namespace)
            return Shape(kind, pa.map_(pa.string(), part.arrow), parts=(part,))
        if kind not in _PRIMITIVES:
            return self._by_name(kind, namespace)
        return _with_logical(definition, Shape(kind, _PRIMITIVES[kind]))

    def _by_name(self, name: str, namespace: str) -> Shape:
        if name in _PRIMITIVES:
            return Shape(name, _PRIMITIVES[name])
        for full in (_full_name(name, namespace), name):
            if full in self._named:
                found = self._named[full]
                if found is None:
                    raise SchemaMismatch(
                        f"AVRO type {full} contains itself, for which Spark has no type; ", SET_RAW_VALUE
                    )
                return found
        raise SchemaMismatch(f"AVRO type {name!r} is unknown; ", SET_RAW_VALUE, " to get bytes")

    def _define(self, definition: Any, kind: str, namespace: str) -> Shape:
        name = _full_name(definition["name"], definition.get("namespace", namespace))
        self._named[name] = None
        if kind == "record":
            inside = name.rpartition(".")[0]
            fields = [(str(each["name"]), self.of(each["type"], inside)) for each in definition["fields"]]
            made = Shape(
                kind,
                pa.struct([(each, shape.arrow) for each, shape in fields]),
                name=name,
                parts=tuple(shape for _, shape in fields),
                fields=tuple(each for each, _ in fields),
                defaults=tuple(
                    (index, each["default"])
                    for index, each in enumerate(definition["fields"])
                    if each.get("default") is not None
                ),
            )
        elif kind == "enum":
            made = Shape(kind, pa.string(), name=name, symbols=frozenset(map(str, definition["symbols"])))
        else:
            made = _with_logical(definition, Shape(kind, pa.binary(), name=name))
        self._named[name] = made
        return made

    def _union(self, branches: list[Shape]) -> Shape:
        parts = tuple(each for each in branches if each.kind != "null")
        if not parts:
            return Shape("null", pa.null())
        if len(parts) == 1:
            return Shape("union", parts[0].arrow, parts=parts)
        if not any(each.logical for each in parts):
            for kinds, wide in _WIDENED:
                if {each.kind for each in parts} == kinds:
                    return Shape("union", _PRIMITIVES[wide], parts=parts)
        members = pa.struct([(f"member{index}", each.arrow) for index, each in enumerate(parts)])
        return Shape("union", members, parts=parts)


def part_of_kind(shape: Shape, kind: pa.DataType) -> Shape:
    """The same, with those fields of its records alone that a column of this type has."""
    if shape.kind == "record" and pa.types.is_struct(kind):
        kept = [index for index, name in enumerate(shape.fields) if kind.get_field_index(name) >= 0]
        fields = tuple(shape.fields[index] for index in kept)
        return replace(
            shape,
            fields=fields,
            parts=tuple(
                part_of_kind(shape.parts[index], kind.field(name).type)
                for index, name in zip(kept, fields, strict=True)
            ),
            defaults=tuple((kept.index(index), each) for index, each in shape.defaults if index in kept),
        )
    if shape.kind == "union" and len(shape.parts) == 1:
        return replace(shape, parts=(part_of_kind(shape.parts[0], kind),))
    if shape.kind == "array" and pa.types.is_list(kind):
        return replace(shape, parts=(part_of_kind(shape.parts[0], kind.value_type),))
    if shape.kind == "map" and pa.types.is_map(kind):
        return replace(shape, parts=(part_of_kind(shape.parts[0], kind.item_type),))
    return shape


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _with_logical(definition: Any, shape: Shape) -> Shape:
    """A logical type that does not fit its plain one has no meaning, says the specification."""
    logical = definition.get("logicalType")
    arrow = _LOGICAL.get((shape.kind, logical))
    if logical == "decimal" and shape.kind in ("bytes", "fixed"):
        digits, scale = definition.get("precision", 0), definition.get("scale", 0)
        if digits > DECIMAL_DIGITS_MAX:
            raise SchemaMismatch(f"a decimal of {digits} digits; Spark has at most {DECIMAL_DIGITS_MAX}")
        if digits > 0 and 0 <= scale <= digits:
            arrow = pa.decimal128(digits, scale)
    if arrow is None:
        return replace(shape, plain_logical=logical if isinstance(logical, str) else None)
    return Shape(shape.kind, arrow, logical, name=shape.name)


def readable_definition(definition: Any, *, times: bool) -> Any:
    """For the AVRO decoder: without logical types that have no column type (their plain values are kept), and
    with null for fields that may be null and have no default, so that older values without them are read.

    Without `times`, times and dates are left as the numbers that they are; but not in a union with a plain
    number, which could not be told from them.
    """
    return _readable(_Names().absolute(definition, ""), times=times, is_time=times)


class _Names:
    """Names of types without a namespace that are used within one: the AVRO decoder takes such a name for one
    of that namespace. Java looks there first, then without.
    """

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._needed = False

    def absolute(self, definition: Any, namespace: str) -> Any:
        """The same definition, with a namespace of its own for all names that have none, if it needs that."""
        self._collect(definition, namespace)
        if not self._needed:
            return definition
        # Again in order: a name means what was defined before it.
        self._known.clear()
        return self._renamed(definition, namespace)

    def _collect(self, definition: Any, namespace: str) -> None:
        if isinstance(definition, str):
            full = _full_name(definition, namespace)
            self._needed |= definition in self._known and full not in self._known
        elif isinstance(definition, list):
            for each in definition:
                self._collect(each, namespace)
        elif isinstance(definition, dict):
            namespace = self._enter(definition, namespace)
            for part in _parts(definition):
                self._collect(part, namespace)

    def _enter(self, definition: dict[str, Any], namespace: str) -> str:
        if definition.get("type") not in NAMED:
            return namespace
        full = _full_name(definition["name"], definition.get("namespace", namespace))
        self._known.add(full)
        return full.rpartition(".")[0]

    def _renamed(self, definition: Any, namespace: str) -> Any:
        if isinstance(definition, str):
            full = _full_name(definition, namespace)
            name = full if full in self._known else definition
            return f"{NO_NAMESPACE}{name}" if name in self._known and "." not in name else definition
        if isinstance(definition, list):
            return [self._renamed(each, namespace) for each in definition]
        if not isinstance(definition, dict):
            return definition
        made = dict(definition)
        namespace = self._enter(definition, namespace)
        if definition.get("type") in NAMED and not namespace:
            made["namespace"] = NO_NAMESPACE.rstrip(".")
        for name in ("items", "values"):
            if name in made:
                made[name] = self._renamed(made[name], namespace)
        if isinstance(made.get("type"), dict | list) or made.get("type") in self._known:
            made["type"] = self._renamed(made["type"], namespace)
        if "fields" in made:
            made["fields"] = [
                {**each, "type": self._renamed(each["type"], namespace)} for each in made["fields"]
            ]
        return made


def _parts(definition: dict[str, Any]) -> list[Any]:
    own = [definition[name] for name in ("type", "items", "values") if name in definition]
    return own + [each["type"] for each in definition.get("fields", ())]


def _readable(definition: Any, *, times: bool, is_time: bool) -> Any:
    if isinstance(definition, list):
        numbers = [each for each in definition if _plain_kind(each) in ("int", "long")]
        return [_readable(each, times=times, is_time=times or len(numbers) > 1) for each in definition]
    if not isinstance(definition, dict):
        return definition
    kept = {
        name: value if name in _NO_TYPES else _readable(value, times=times, is_time=times)
        for name, value in definition.items()
    }
    logical = kept.get("logicalType")
    if (
        logical is not None
        and not _is_decimal(kept)
        and (not is_time or (kept.get("type"), logical) not in _LOGICAL)
    ):
        del kept["logicalType"]
    if kept.get("type") == "record":
        kept["fields"] = [_with_default(each) for each in kept["fields"]]
    return kept


def _plain_kind(definition: Any) -> Any:
    return definition.get("type") if isinstance(definition, dict) else definition


_NO_TYPES = ("default", "symbols", "aliases", "doc", "name", "namespace", "order", "size", "logicalType")


def _is_decimal(definition: Any) -> bool:
    return definition.get("logicalType") == "decimal" and definition.get("type") in ("bytes", "fixed")


def _with_default(field: Any) -> Any:
    kind = field.get("type")
    if "default" in field or not isinstance(kind, list) or "null" not in kind:
        return field
    return {**field, "default": None}


def with_values(parsed: Any) -> Any:
    """A definition that the AVRO decoder has parsed, changed in place: the defaults of its records are the
    values that they stand for. The decoder gives them as they are, and takes only texts when it parses.
    """
    if isinstance(parsed, list):
        for each in parsed:
            with_values(each)
    elif isinstance(parsed, dict):
        for name in ("type", "items", "values"):
            with_values(parsed.get(name))
        for each in parsed.get("fields", ()):
            with_values(each)
            if "default" in each:
                each["default"] = _default_value(each["type"], each["default"])
    return parsed


def decimal_of(data: bytes, scale: int) -> Decimal:
    """The value of a decimal that is stored as these bytes."""
    return Decimal(int.from_bytes(data, "big", signed=True)).scaleb(-scale)


def _default_value(kind: Any, default: Any) -> Any:
    """A default as the decoder gives a value: the text of bytes has a character for each, U+0000 to U+00FF.
    A type that is named elsewhere is not looked up.
    """
    if isinstance(kind, list):
        return _default_value(kind[0], default) if kind else default
    name = _plain_kind(kind)
    if name in ("bytes", "fixed") and isinstance(default, str):
        data = default.encode("latin-1")
        if isinstance(kind, dict) and _is_decimal(kind):
            return decimal_of(data, kind.get("scale", 0))
        return data
    if name == "array" and isinstance(default, list):
        return [_default_value(kind["items"], each) for each in default]
    if name == "map" and isinstance(default, dict):
        return {key: _default_value(kind["values"], each) for key, each in default.items()}
    if name == "record" and isinstance(default, dict):
        types = {each["name"]: each["type"] for each in kind["fields"]}
        return {key: _default_value(types.get(key), each) for key, each in default.items()}
    return default
