"""Decoded AVRO and JSON values into what the columns of their shapes take. Pure."""

from __future__ import annotations

import base64
import binascii
import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from geminga.pipeline.values.avro_shapes import NAMED, Shape

Change = Callable[[Any], Any]
_INT32 = 1 << 31
_DIGITS_MAX = 40
"""Of a number with a decimal exponent."""
_UNITS_US = {"timestamp-millis": 1000, "timestamp-micros": 1}
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EPOCH_DAY = dt.date(1970, 1, 1)
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


def from_avro(shape: Shape) -> Change | None:
    """Of values that were decoded with the names of named types in unions; None: they need no change."""
    if not shape.any("members"):
        return None
    return _avro(shape)


def _avro(shape: Shape) -> Change:
    if shape.kind == "union":
        parts = [_avro(part) for part in shape.parts]
        if not shape.has_members:
            return lambda value: None if value is None else parts[0](_unnamed(value))
        names = {part.name: index for index, part in enumerate(shape.parts) if part.kind in NAMED}

        def member(value: Any) -> Any:
            if value is None:
                return None
            if isinstance(value, tuple):
                index = names[value[0]]
                return {f"member{index}": parts[index](value[1])}
            index = _branch(shape, value)
            return {f"member{index}": parts[index](value)}

        return member
    return _container(shape, _avro)


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
    for index, part in enumerate(shape.parts):
        if part.kind in ("int", "long") and part.logical is None:
            fits = isinstance(value, int) and not isinstance(value, bool)
            if fits and (part.kind == "long" or -_INT32 <= value < _INT32):
                return index
            continue
        kinds = _LOGICAL_KINDS[part.logical] if part.logical else _KINDS.get(part.kind, ())
        if isinstance(value, kinds) and not (part.logical == "date" and isinstance(value, dt.datetime)):
            return index
    raise ValueError(f"{value!r} is of none of the types of a union")


def from_json(shape: Shape) -> Change:
    """Of what `json.loads` gives, with numbers that are no integers as Decimal. What is not of its type is
    handed on as it is: the column refuses it.
    """
    if shape.kind == "union":
        parts = [from_json(part) for part in shape.parts]
        if not shape.has_members:
            last = len(parts) - 1 if len(parts) > 1 else 0
            return lambda value: None if value is None else parts[last](value)

        def member(value: Any) -> Any:
            if value is None:
                return None
            index = _branch(shape, float(value) if isinstance(value, Decimal) else value)
            return {f"member{index}": parts[index](value)}

        return member
    change = _json_container if shape.kind in ("record", "array", "map") else _json_scalar
    plain = change(shape)
    return lambda value: None if value is None else plain(value)


def _json_container(shape: Shape) -> Change:
    wanted, kept = (list if shape.kind == "array" else dict), _container(shape, from_json)
    return lambda value: kept(value) if isinstance(value, wanted) else value


def _json_scalar(shape: Shape) -> Change:
    if shape.logical == "decimal":
        return lambda value: Decimal(str(value)) if isinstance(value, int | str | Decimal) else value
    if shape.logical == "date":
        return _date
    if shape.logical is not None:
        return lambda value: _time(value, _UNITS_US[str(shape.logical)])
    if shape.kind in ("bytes", "fixed"):
        return _bytes
    if shape.kind in ("float", "double"):
        return _float
    if shape.kind in ("int", "long"):
        return lambda value: _whole(value) if isinstance(value, Decimal) else value
    return lambda value: value


def _date(value: Any) -> Any:
    if isinstance(value, str):
        return dt.date.fromisoformat(value)
    return _EPOCH_DAY + dt.timedelta(days=value) if isinstance(value, int) else value


def _time(value: Any, unit_us: int) -> Any:
    if isinstance(value, str):
        found = dt.datetime.fromisoformat(value)
        return found if found.tzinfo is not None else found.replace(tzinfo=dt.UTC)
    if isinstance(value, Decimal):
        value = _whole(value)
    if isinstance(value, int | Decimal):
        return _EPOCH + dt.timedelta(microseconds=int(value * unit_us))
    return value


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
