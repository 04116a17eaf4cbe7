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
_LOGICAL_KINDS: dict[str, tuple[type, ...]] = {
    "decimal": (Decimal,),
    "date": (dt.date,),
    "timestamp-millis": (dt.datetime,),
    "timestamp-micros": (dt.datetime,),
}


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
        kinds = _LOGICAL_KINDS[part.logical] if part.logical else _KINDS.get(part.kind, ())
        if isinstance(value, kinds) and not (part.logical == "date" and isinstance(value, dt.datetime)):
            return index
    raise ValueError(f"{value!r} is of none of the types of a union")


def from_json(shape: Shape, out_of_range: OutOfRange = "clamp") -> Change:
    """Of what `json.loads` gives, with numbers that are no integers as Decimal. What is not of its type is
    handed on as it is: the column refuses it. A field that is not there has its default.
    """
    return _Json(out_of_range).change(shape)


class _Json:
    def __init__(self, out_of_range: OutOfRange) -> None:
        self._out_of_range = out_of_range

    def change(self, shape: Shape) -> Change:
        if shape.kind == "union":
            parts = [self.change(part) for part in shape.parts]
            if not shape.has_members:
                last = len(parts) - 1 if len(parts) > 1 else 0
                return lambda value: None if value is None else parts[last](value)

            def member(value: Any) -> Any:
                if value is None:
                    return None
                index = _branch(shape, float(value) if isinstance(value, Decimal) else value)
                return {f"member{index}": parts[index](value)}

            return member
        if shape.kind == "record":
            return self._record(shape)
        plain = self._container(shape) if shape.kind in ("array", "map") else self._scalar(shape)
        return lambda value: None if value is None else plain(value)

    def _record(self, shape: Shape) -> Change:
        changes = [self.change(part) for part in shape.parts]
        defaults: list[Any] = [None] * len(changes)
        for index, default in shape.defaults:
            defaults[index] = changes[index](_as_json(shape.parts[index], default))
        fields = list(zip(shape.fields, changes, defaults, strict=True))

        def record(value: Any) -> Any:
            if not isinstance(value, dict):
                return value
            return {
                name: change(value[name]) if name in value else default for name, change, default in fields
            }

        return record

    def _container(self, shape: Shape) -> Change:
        wanted, kept = (list if shape.kind == "array" else dict), _container(shape, self.change)
        return lambda value: kept(value) if isinstance(value, wanted) else value

    def _scalar(self, shape: Shape) -> Change:
        if shape.logical == "decimal":
            return lambda value: Decimal(str(value)) if isinstance(value, int | str | Decimal) else value
        if shape.logical == "date":
            return _days
        if shape.logical is not None:
            unit_us, out_of_range = UNITS_US[str(shape.logical)], self._out_of_range
            return lambda value: _time(value, unit_us, out_of_range)
        if shape.kind in ("bytes", "fixed"):
            return _bytes
        if shape.kind in ("float", "double"):
            return _float
        if shape.kind in ("int", "long"):
            units = _LOCAL_UNITS.get(shape.plain_logical or "")
            return lambda value: (
                _whole(value)
                if isinstance(value, Decimal)
                else _local_time(value, units)
                if units is not None and isinstance(value, list)
                else value
            )
        if shape.kind == "string":
            # Jackson writes a BigDecimal as a number, whatever the definition says.
            return lambda value: str(value) if type(value) in (int, Decimal) else value
        return lambda value: value


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


def _float(value: Any) -> Any:
    """Jackson writes what JSON has no number for as text."""
    if isinstance(value, str) and value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    return float(value) if isinstance(value, int | Decimal) and not isinstance(value, bool) else value


def _bytes(value: Any) -> Any:
    """Base64 as Jackson writes it; the Python client writes text."""
    if isinstance(value, str):
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            return value.encode()
    return value
