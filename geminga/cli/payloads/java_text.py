"""Values as pulsar-client prints them: Java's `toString` of maps, in the order of Java's hash maps. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from geminga.cli.payloads.schemas import KeyValue
from geminga.wire import pulsar_pb2 as pb

_TYPE = pb.Schema.Type
_CLASSES: dict[int, str] = {
    _TYPE.String: "java.lang.String",
    _TYPE.Bool: "java.lang.Boolean",
    _TYPE.Int8: "java.lang.Byte",
    _TYPE.Int16: "java.lang.Short",
    _TYPE.Int32: "java.lang.Integer",
    _TYPE.Int64: "java.lang.Long",
    _TYPE.Float: "java.lang.Float",
    _TYPE.Double: "java.lang.Double",
    _TYPE.Date: "java.util.Date",
    _TYPE.Time: "java.sql.Time",
    _TYPE.Timestamp: "java.sql.Timestamp",
    _TYPE.Instant: "java.time.Instant",
    _TYPE.LocalDate: "java.time.LocalDate",
    _TYPE.LocalTime: "java.time.LocalTime",
    _TYPE.LocalDateTime: "java.time.LocalDateTime",
}
_TABLE_SIZE_FIRST = 16


def hash_order(keys: Iterable[str]) -> list[str]:
    """The order in which a `java.util.HashMap` lists keys that were put into it in this order."""
    given = list(dict.fromkeys(keys))
    size = _TABLE_SIZE_FIRST
    while len(given) > size * 3 // 4:
        size *= 2
    return sorted(given, key=lambda key: _spread(key) & (size - 1))


def _spread(key: str) -> int:
    code = 0
    raw = key.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(raw), 2):
        code = (31 * code + (raw[at] << 8 | raw[at + 1])) & 0xFFFFFFFF
    return code ^ code >> 16


def map_text(values: Mapping[str, str]) -> str:
    """`{a=1, b=2}`"""
    return "{" + ", ".join(f"{key}={values[key]}" for key in hash_order(values)) + "}"


def properties_text(properties: Mapping[str, str]) -> str:
    """`[a=1, b=2]`"""
    return "[" + ", ".join(f"{key}={properties[key]}" for key in hash_order(properties)) + "]"


def value_text(value: Any, kind: int) -> str:
    """What `-st auto_consume` prints for a value of a schema of this type."""
    if isinstance(value, KeyValue):
        key = _part(value.key, value.key_kind)
        return f"{{key={key}, value={_part(value.value, value.value_kind)}}}"
    return _part(value, kind)


def _part(value: Any, kind: int) -> str:
    if value is None:
        return "{value=NULL}"
    if isinstance(value, dict):
        return _record(value)
    return f"{{value={_plain(value)}, type=class {_CLASSES.get(kind, 'java.lang.String')}}}"


def _record(value: Mapping[str, Any]) -> str:
    fields = {name: "NULL" if inner is None else _plain(inner) for name, inner in value.items()}
    return map_text(fields)


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return _record(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return double_text(value)
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return json.dumps(value, ensure_ascii=False, default=_plain) if isinstance(value, list) else str(value)


def double_text(value: float) -> str:
    """A double as Java prints it: `1.0E10` from ten million on and below a thousandth."""
    shown = repr(value)
    if value != value or value in (float("inf"), float("-inf")):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[shown]
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return shown if "e" not in shown else f"{value:f}"
    exponent = f"{value:.17e}".partition("e")[2]
    digits = repr(abs(value)).partition("e")[0].replace(".", "").strip("0") or "0"
    sign = "-" if value < 0 else ""
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{int(exponent)}"


def hex_dump(data: bytes) -> str:
    """As the tool's `--hex` prints bytes: offset, sixteen bytes, their characters."""
    lines = []
    for at in range(0, len(data), 16):
        row = data[at : at + 16]
        codes = "".join(f"{byte:02X} " for byte in row) + "   " * (16 - len(row))
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{at:08X} {codes}{shown}\n")
    return "".join(lines)
