"""AVRO's binary form of one value, read and written by its schema. Pure."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

from geminga.cli.payloads.errors import CannotDecode, CannotEncode

ITEMS_MAX = 1_000_000
"""Of one value. A few bytes may claim any number of items that take none."""
DEPTH_MAX = 100
_NAMED = ("record", "error", "enum", "fixed")
_PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")


class AvroSchema:
    """One definition. Make it with `parse`."""

    def __init__(self, root: Any, names: Mapping[str, Any]) -> None:
        self.root = root
        self._names = names

    @classmethod
    def parse(cls, definition: bytes | str) -> AvroSchema:
        """Raises `ValueError` for what is no Avro schema."""
        root = json.loads(definition)
        names: dict[str, Any] = {}
        _collect(root, "", names, 0)
        return cls(root, names)

    def decode(self, data: bytes) -> Any:
        """The value: records are dicts, `bytes` and `fixed` bytes. Raises `CannotDecode`."""
        reader = _Reader(data)
        try:
            return self._read(self.root, reader, "", 0)
        except (ValueError, LookupError, struct.error, RecursionError) as error:
            raise CannotDecode(f"not a value of the topic's AVRO schema: {error}") from None

    def encode(self, value: Any) -> bytes:
        """A value as JSON has it; branches of a union may be named as AVRO's JSON names them, or left to be
        found. Raises `CannotEncode`.
        """
        out = bytearray()
        try:
            self._write(self.root, value, out, "", 0)
        except (ValueError, LookupError, struct.error, RecursionError) as error:
            raise CannotEncode(f"not a value of the AVRO schema: {error}") from None
        return bytes(out)

    def _resolved(self, schema: Any, namespace: str) -> tuple[Any, str]:
        """The definition behind a name, and the namespace inside it."""
        if isinstance(schema, dict) and isinstance(schema.get("type"), dict | list):
            return self._resolved(schema["type"], namespace)
        name = schema if isinstance(schema, str) else schema.get("type") if isinstance(schema, dict) else None
        if name is not None and name not in (*_PRIMITIVES, *_NAMED, "array", "map"):
            found = self._names.get(name) or self._names[f"{namespace}.{name}" if namespace else name]
            return found, _namespace_of(found, namespace)
        return schema, _namespace_of(schema, namespace)

    # -- reading ---------------------------------------------------------------------------------------------

    def _read(self, schema: Any, reader: _Reader, namespace: str, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise ValueError("nested too deep")
        schema, namespace = self._resolved(schema, namespace)
        if isinstance(schema, list):
            index = reader.long()
            if not 0 <= index < len(schema):
                raise ValueError(f"a union has no branch {index}")
            return self._read(schema[index], reader, namespace, depth + 1)
        kind = schema if isinstance(schema, str) else schema["type"]
        if kind in ("record", "error"):
            return {
                field["name"]: self._read(field["type"], reader, namespace, depth + 1)
                for field in schema["fields"]
            }
        if kind == "enum":
            return schema["symbols"][reader.index(len(schema["symbols"]))]
        if kind == "fixed":
            return reader.take(schema["size"])
        if kind == "array":
            return [self._read(schema["items"], reader, namespace, depth + 1) for _ in reader.items()]
        if kind == "map":
            return {
                reader.take(reader.long()).decode(): self._read(
                    schema["values"], reader, namespace, depth + 1
                )
                for _ in reader.items()
            }
        return reader.primitive(kind)

    # -- writing ---------------------------------------------------------------------------------------------

    def _write(self, schema: Any, value: Any, out: bytearray, namespace: str, depth: int) -> None:
        if depth > DEPTH_MAX:
            raise ValueError("nested too deep")
        schema, namespace = self._resolved(schema, namespace)
        if isinstance(schema, list):
            self._write_union(schema, value, out, namespace, depth)
            return
        kind = schema if isinstance(schema, str) else schema["type"]
        if not _fits(kind, value):
            raise ValueError(f"{json.dumps(value)[:60]} where {_name_of(schema)} is expected")
        if kind in ("record", "error"):
            for field in schema["fields"]:
                if field["name"] not in value and "default" not in field:
                    raise ValueError(f"{_name_of(schema)} lacks {field['name']!r}")
                given = value.get(field["name"], field.get("default"))
                self._write(field["type"], given, out, namespace, depth + 1)
        elif kind == "enum":
            out += _zigzag(schema["symbols"].index(value))
        elif kind == "fixed":
            raw = value.encode("latin-1")
            if len(raw) != schema["size"]:
                raise ValueError(f"{len(raw)} bytes where {schema['size']} are expected")
            out += raw
        elif kind in ("array", "map"):
            if value:
                out += _zigzag(len(value))
            for item in value:
                if kind == "map":
                    out += _sized(item.encode())
                inner = schema["items"] if kind == "array" else schema["values"]
                self._write(inner, item if kind == "array" else value[item], out, namespace, depth + 1)
            out += b"\0"
        else:
            out += _primitive(kind, value)

    def _write_union(
        self, branches: list[Any], value: Any, out: bytearray, namespace: str, depth: int
    ) -> None:
        if isinstance(value, dict) and len(value) == 1:
            [(named, inner)] = value.items()
            for index, branch in enumerate(branches):
                if named in self._names_of(branch, namespace):
                    out += _zigzag(index)
                    self._write(branch, inner, out, namespace, depth + 1)
                    return
        problem = ValueError("no branch of the union takes it")
        for index, branch in enumerate(branches):
            before = len(out)
            try:
                out += _zigzag(index)
                self._write(branch, value, out, namespace, depth + 1)
            except (ValueError, LookupError) as error:
                del out[before:]
                problem = error if isinstance(error, ValueError) else problem
            else:
                return
        raise problem

    def _names_of(self, branch: Any, namespace: str) -> tuple[str, ...]:
        schema, inner = self._resolved(branch, namespace)
        if isinstance(schema, list):
            return ()
        name = _name_of(schema)
        return (name, f"{inner}.{name}") if inner else (name,)


def _collect(schema: Any, namespace: str, names: dict[str, Any], depth: int) -> None:
    if depth > DEPTH_MAX:
        raise ValueError("nested too deep")
    if isinstance(schema, list):
        for branch in schema:
            _collect(branch, namespace, names, depth + 1)
        return
    if not isinstance(schema, dict):
        if not isinstance(schema, str):
            raise ValueError(f"{json.dumps(schema)[:60]} is no AVRO type")
        return
    kind = schema.get("type")
    if kind in _NAMED:
        inner = _namespace_of(schema, namespace)
        name = str(schema["name"]).rpartition(".")[2]
        names[f"{inner}.{name}" if inner else name] = schema
        for field in schema.get("fields", ()):
            _collect(field["type"], inner, names, depth + 1)
    elif kind == "array":
        _collect(schema["items"], namespace, names, depth + 1)
    elif kind == "map":
        _collect(schema["values"], namespace, names, depth + 1)
    else:
        _collect(kind, namespace, names, depth + 1)


def _namespace_of(schema: Any, outside: str) -> str:
    if not isinstance(schema, dict) or schema.get("type") not in _NAMED:
        return outside
    spelled, dot, _ = str(schema.get("name", "")).rpartition(".")
    return spelled if dot else str(schema.get("namespace", outside))


def _name_of(schema: Any) -> str:
    if isinstance(schema, str):
        return schema
    return str(schema.get("name", schema["type"])).rpartition(".")[2]


def _fits(kind: str, value: Any) -> bool:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    match kind:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "int":
            return is_number and -(2**31) <= value < 2**31
        case "long":
            return is_number and -(2**63) <= value < 2**63
        case "float" | "double":
            return is_number or isinstance(value, float)
        case "array":
            return isinstance(value, list)
        case "record" | "error" | "map":
            return isinstance(value, dict)
        case _:
            return isinstance(value, str)


def _primitive(kind: str, value: Any) -> bytes:
    match kind:
        case "null":
            return b""
        case "boolean":
            return b"\1" if value else b"\0"
        case "int" | "long":
            return _zigzag(value)
        case "float":
            return _FLOAT.pack(value)
        case "double":
            return _DOUBLE.pack(value)
        case "bytes":
            return _sized(value.encode("latin-1"))
        case "string":
            return _sized(value.encode())
        case _:
            raise ValueError(f"unknown type {kind!r}")


def _sized(raw: bytes) -> bytes:
    return _zigzag(len(raw)) + raw


def _zigzag(number: int) -> bytes:
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._items = 0

    def take(self, size: int) -> bytes:
        found = self._data[self._at : self._at + size]
        if size < 0 or len(found) != size:
            raise ValueError("it ends too early")
        self._at += size
        return found

    def long(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            if byte < 128:
                return (value >> 1) ^ -(value & 1)
            shift += 7
            if shift > 63:
                raise ValueError("a number is too long")

    def index(self, count: int) -> int:
        found = self.long()
        if not 0 <= found < count:
            raise ValueError(f"an enum has no symbol {found}")
        return found

    def items(self) -> Any:
        """As often as the blocks of an array or a map have items."""
        while count := self.long():
            if count < 0:
                self.long()  # the block's size in bytes
                count = -count
            self._items += count
            if self._items > ITEMS_MAX:
                raise ValueError(f"more than {ITEMS_MAX} items")
            yield from range(count)

    def primitive(self, kind: str) -> Any:
        match kind:
            case "null":
                return None
            case "boolean":
                return self.take(1) != b"\0"
            case "int" | "long":
                return self.long()
            case "float":
                return _FLOAT.unpack(self.take(4))[0]
            case "double":
                return _DOUBLE.unpack(self.take(8))[0]
            case "bytes":
                return self.take(self.long())
            case "string":
                return self.take(self.long()).decode()
            case _:
                raise ValueError(f"unknown type {kind!r}")
