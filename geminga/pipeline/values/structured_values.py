"""Decoded AVRO and JSON values into what the columns of their shapes take. Pure."""

from __future__ import annotations

import base64
import binascii
import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from geminga.pipeline.values.avro_shapes import NAMED, NO_NAMESPACE, UNITS_US, Shape, decimal_of
from geminga.pipeline.values.rules import OutOfRange
from geminga.pipeline.values.times import one_in_microseconds

Change = Callable[[Any], Any]
_INT32 = 1 << 31
_INT64 = 1 << 63
_US_PER_SECOND = 1_000_000
_NANOSECOND_DIGITS = -9
"""The exponent of a number of seconds with nanoseconds."""
_EPOCH_ORDINAL = dt.date(1970, 1, 1).toordinal()
_NS_PER_SECOND = 1_000_000_000
_LOCAL_UNITS = {
    "time-millis": (1_000_000, False),
    "time-micros": (1_000, False),
    "local-timestamp-millis": (1_000_000, True),
    "local-timestamp-micros": (1_000, True),
}
"""The nanoseconds of a unit, and whether a date is before the time of day."""
_DIGITS_MAX = 40
"""Of a number with a decimal exponent."""
_KINDS: dict[str, tuple[type, ...]] = {
    "boolean": (bool,),
    "string": (str,),
    "enum": (str,),
    "bytes": (bytes, Decimal),
    "fixed": (bytes, Decimal),
    "float": (float,),
    "double": (float,),
    "array": (list,),
    "map": (dict,),
    "record": (dict,),
}
_AS_IS: dict[str, type] = {"boolean": bool, "string": str, "int": int, "long": int}
"""Of a value of JSON the Python type that the column takes."""
_LOGICAL_KINDS: dict[str, tuple[type, ...]] = {
    "decimal": (Decimal,),
    "date": (dt.date,),
    "timestamp-millis": (dt.datetime,),
    "timestamp-micros": (dt.datetime,),
}


class NotOfSchema(ValueError):
    """A value of JSON is not of its type; says in which field."""

    def __init__(self, found: str, wanted: str, path: str = "") -> None:
        place = f"field {path!r}" if path else "it"
        super().__init__(f"{place} is {found}, and the schema says {wanted}")
        self.found = found
        self.wanted = wanted
        self.path = path

    def inside(self, name: str) -> NotOfSchema:
        """The same, in a field of this name."""
        return NotOfSchema(self.found, self.wanted, f"{name}.{self.path}" if self.path else name)


_BAD_JSON = (ValueError, TypeError, ArithmeticError)
"""What is raised for a value that is not of its type."""
_TEXT_MAX = 40
"""Of a value in an error."""


def _not(shape: Shape, value: Any) -> NotOfSchema:
    if isinstance(value, bool):
        found = "true" if value else "false"
    elif isinstance(value, str):
        found = f"the text {value!r}" if len(value) <= _TEXT_MAX else f"a text of {len(value)} characters"
    elif isinstance(value, int | float | Decimal):
        # Python writes no integer of thousands of digits.
        found = "a number" if isinstance(value, int) and abs(value) > _INT64 else f"the number {value}"
    else:
        found = "an array" if isinstance(value, list) else "an object"
    if shape.kind == "union":
        return NotOfSchema(found, f"one of {', '.join(part.kind for part in shape.parts)}")
    if shape.kind == "enum":
        return NotOfSchema(found, f"a symbol of the enum {shape.name}")
    return NotOfSchema(found, shape.logical or shape.kind)


def from_avro(shape: Shape, out_of_range: OutOfRange = "clamp") -> Change | None:
    """Of values that were decoded with the names of named types in unions, and times as numbers; None: they
    need no change.
    """
    return _Avro(out_of_range).change(shape) if shape.any("members", "logical") else None


class _Avro:
    def __init__(self, out_of_range: OutOfRange) -> None:
        self._out_of_range = out_of_range

    def change(self, shape: Shape) -> Change:
        if shape.kind != "union":
            return self._time(shape) if shape.logical in UNITS_US else _container(shape, self.change)
        parts = [self.change(part) for part in shape.parts]
        if not shape.has_members:
            return lambda value: None if value is None else parts[0](_unnamed(value))
        names = {part.name: index for index, part in enumerate(shape.parts) if part.kind in NAMED}

        def member(value: Any) -> Any:
            if value is None:
                return None
            if isinstance(value, tuple):
                index = names[value[0].removeprefix(NO_NAMESPACE)]
                return {f"member{index}": parts[index](value[1])}
            index = _branch(shape, value)
            return {f"member{index}": parts[index](value)}

        return member

    def _time(self, shape: Shape) -> Change:
        unit_us, out_of_range = UNITS_US[str(shape.logical)], self._out_of_range
        # A datetime where it had to be told from other numbers of a union.
        return lambda value: (
            one_in_microseconds(value, unit_us, out_of_range) if isinstance(value, int) else value
        )


def _unnamed(value: Any) -> Any:
    return value[1] if isinstance(value, tuple) else value


def _container(shape: Shape, each: Callable[[Shape], Change]) -> Change:
    parts = [each(part) for part in shape.parts]
    if shape.kind == "record":
        fields = list(zip(shape.fields, parts, strict=True))
        return lambda value: {name: change(value.get(name)) for name, change in fields}
    if shape.kind == "array":
        return lambda value: [parts[0](one) for one in value]
    if shape.kind == "map":
        return lambda value: {key: parts[0](one) for key, one in value.items()}
    return lambda value: value


def _branch(shape: Shape, value: Any) -> int:
    """Which of a union's types a value is of. Raises `ValueError`."""
    numbers = sum(part.kind in ("int", "long") for part in shape.parts)
    for index, part in enumerate(shape.parts):
        if part.kind in ("int", "long") and (part.logical is None or numbers == 1):
            fits = isinstance(value, int) and not isinstance(value, bool)
            if fits and (part.kind == "long" or -_INT32 <= value < _INT32):
                return index
            continue
        if part.kind == "enum" and isinstance(value, str) and value not in part.symbols:
            continue
        kinds = _LOGICAL_KINDS[part.logical] if part.logical else _KINDS.get(part.kind, ())
        if isinstance(value, kinds) and not (part.logical == "date" and isinstance(value, dt.datetime)):
            return index
    raise ValueError(f"{value!r} is of none of the types of a union")


def from_json(shape: Shape, out_of_range: OutOfRange = "clamp") -> Change:
    """Of what `json.loads` gives, with numbers that are no integers as Decimal. A field that is not there has
    its default. It raises `NotOfSchema` for what is not of its type, since columns do not refuse all that: an
    empty list is a record to them, a list of pairs a map, and true is a number with a point. Only whether a
    number is small enough is left to the column.
    """
    return _Json(out_of_range).change(shape)


class _Json:
    def __init__(self, out_of_range: OutOfRange) -> None:
        self._out_of_range = out_of_range

    def change(self, shape: Shape) -> Change:
        if shape.kind == "union":
            parts = [self.change(part) for part in shape.parts]
            if not shape.has_members:
                return lambda value: None if value is None else parts[-1](value)

            def member(value: Any) -> Any:
                if value is None:
                    return None
                try:
                    index = _branch(shape, float(value) if isinstance(value, Decimal) else value)
                except ValueError:
                    raise _not(shape, value) from None
                return {f"member{index}": parts[index](value)}

            return member
        if shape.kind == "record":
            return self._record(shape)
        return self._container(shape) if shape.kind in ("array", "map") else self._scalar(shape)

    def _record(self, shape: Shape) -> Change:
        changes = [self.change(part) for part in shape.parts]
        defaults: list[Any] = [None] * len(changes)
        for index, default in shape.defaults:
            defaults[index] = _default(changes[index], _as_json(shape.parts[index], default))
        fields = list(zip(shape.fields, changes, defaults, strict=True))

        def record(value: Any) -> Any:
            if value is None:
                return None
            if not isinstance(value, dict):
                raise _not(shape, value)
            try:
                return {
                    name: change(value[name]) if name in value else default
                    for name, change, default in fields
                }
            except NotOfSchema:
                raise _in_field(fields, value) from None

        return record

    def _container(self, shape: Shape) -> Change:
        wanted, kept = (list if shape.kind == "array" else dict), _container(shape, self.change)

        def container(value: Any) -> Any:
            if value is None:
                return None
            if not isinstance(value, wanted):
                raise _not(shape, value)
            return kept(value)

        return container

    def _scalar(self, shape: Shape) -> Change:
        kinds, change = self._known(shape)
        as_is = _AS_IS.get(shape.kind) if shape.logical is None else None

        def scalar(value: Any) -> Any:
            # Not `isinstance`: true is an integer to Python.
            kind = type(value)
            if kind is as_is or value is None:
                return value
            if kind not in kinds:
                raise _not(shape, value)
            try:
                return change(value)
            except _BAD_JSON:
                raise _not(shape, value) from None

        return scalar

    def _known(self, shape: Shape) -> tuple[tuple[type, ...], Change]:
        """The Python types that values may have beside the one in `_AS_IS`, and what is made of them."""
        if shape.logical == "decimal":
            return (int, str, Decimal), lambda value: Decimal(str(value))
        if shape.logical == "date":
            return (int, str, Decimal, list), _days
        if shape.logical is not None:
            unit_us, out_of_range = UNITS_US[str(shape.logical)], self._out_of_range
            return (int, str, Decimal), lambda value: _time(value, unit_us, out_of_range)
        if shape.kind in ("bytes", "fixed"):
            return (str,), _bytes
        if shape.kind in ("float", "double"):
            return (int, float, Decimal, str), lambda value: _float(shape, value)
        if shape.kind in ("int", "long"):
            units = _LOCAL_UNITS.get(shape.plain_logical or "")
            if units is None:
                return (Decimal,), _whole
            return (
                Decimal,
                list,
            ), lambda value: _local_time(value, units) if isinstance(value, list) else _whole(value)
        if shape.kind == "string":
            # Jackson writes a BigDecimal as a number, whatever the definition says.
            return (int, Decimal), str
        if shape.kind == "enum":
            return (str,), lambda value: _symbol(shape, value)
        return (), lambda value: value


def _default(change: Change, default: Any) -> Any:
    """The definition of another client may have one that is not of its type."""
    try:
        return change(default)
    except _BAD_JSON:
        return default


def _in_field(fields: list[tuple[str, Change, Any]], value: dict[str, Any]) -> NotOfSchema:
    """Why the first field that is bad is."""
    for name, change, _ in fields:
        try:
            change(value.get(name))
        except NotOfSchema as error:
            return error.inside(name)
    raise AssertionError("a field was bad, and none is")  # pragma: no cover


def _symbol(shape: Shape, value: str) -> str:
    if value not in shape.symbols:
        raise _not(shape, value)
    return value


def _as_json(shape: Shape, default: Any) -> Any:
    """A default of a definition as a value of JSON would be written: bytes are in base64 there."""
    if shape.kind == "union" and shape.parts:
        return _as_json(shape.parts[0], default)
    if shape.kind in ("bytes", "fixed") and isinstance(default, str):
        data = default.encode("latin-1")
        if shape.logical is None:
            return base64.b64encode(data).decode()
        return decimal_of(data, shape.arrow.scale)
    if shape.kind == "array" and isinstance(default, list):
        return [_as_json(shape.parts[0], each) for each in default]
    if shape.kind == "map" and isinstance(default, dict):
        return {name: _as_json(shape.parts[0], each) for name, each in default.items()}
    if shape.kind == "record" and isinstance(default, dict):
        parts = dict(zip(shape.fields, shape.parts, strict=True))
        return {name: _as_json(parts[name], each) for name, each in default.items() if name in parts}
    return default


def _days(value: Any) -> Any:
    """Of a date its number, which a column takes, since Python's dates end with the year 9999."""
    if isinstance(value, str):
        return dt.date.fromisoformat(value)
    if isinstance(value, list):
        return dt.date(*value)
    return _whole(value) if isinstance(value, Decimal) else value


def _local_time(value: list[Any], units: tuple[int, bool]) -> int:
    """As Jackson writes `LocalTime` and `LocalDateTime`: their numbers from the hour or the year on, seconds
    and nanoseconds only if there are any. As a number of the unit that the definition names. Raises
    `ValueError` and `TypeError`.
    """
    unit_ns, has_date = units
    days = 0
    if has_date:
        days = dt.date(*value[:3]).toordinal() - _EPOCH_ORDINAL
        value = value[3:]
    hour, minute, *rest = value
    second, nanosecond = (*rest, 0, 0)[:2]
    dt.time(hour, minute, second)
    if len(rest) > 2 or not 0 <= nanosecond < _NS_PER_SECOND:
        raise ValueError(f"{value} is not a time of day")
    seconds = ((days * 24 + int(hour)) * 60 + minute) * 60 + second
    found: int = (seconds * _NS_PER_SECOND + nanosecond) // unit_ns
    return found


def _time(value: Any, unit_us: int, out_of_range: OutOfRange) -> Any:
    if isinstance(value, str):
        found = dt.datetime.fromisoformat(value)
        return found if found.tzinfo is not None else found.replace(tzinfo=dt.UTC)
    if isinstance(value, Decimal):
        # Jackson writes an Instant as seconds with nine decimals, whatever unit the definition names.
        if value.as_tuple().exponent == _NANOSECOND_DIGITS:
            # Before 1970 too it has the second that the instant is in, and what is to be added to that.
            seconds = int(value)
            nanoseconds = int((value - seconds).scaleb(9))
            added_us = (abs(nanoseconds) if seconds < 0 else nanoseconds) // 1000
            return one_in_microseconds(seconds * _US_PER_SECOND + added_us, 1, out_of_range)
        value = _whole(value)
    if isinstance(value, bool):
        return value
    if isinstance(value, Decimal):
        return one_in_microseconds(int(value * unit_us), 1, out_of_range)
    return one_in_microseconds(value, unit_us, out_of_range) if isinstance(value, int) else value


def _whole(value: Decimal) -> int | Decimal:
    """As an integer if it is one that a column may hold. 1e999999999 is one too, but would take for ever.

    Raises `OverflowError`.
    """
    if not value.is_finite() or value.adjusted() > _DIGITS_MAX:
        raise OverflowError(f"{value} is beyond all bounds")
    whole = int(value)
    return whole if value == whole else value


def _float(shape: Shape, value: Any) -> float:
    """Jackson writes what JSON has no number for as text."""
    if isinstance(value, str) and value not in ("NaN", "Infinity", "-Infinity"):
        raise _not(shape, value)
    return float(value)


def _bytes(value: str) -> bytes:
    """Base64 as Jackson writes it; the Python client writes text."""
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return value.encode()
