"""Parses, compares and prints Avro schemas, as far as a broker needs that. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
NAMED: Final = frozenset({"record", "error", "enum", "fixed"})
DEPTH_MAX: Final = 100
"""The limit of nested types: beyond it the parser fails, and not the stack."""
BRANCHES_MAX: Final = 1000
"""The limit of branches in a union: two unions are compared branch by branch."""
_RESERVED: Final[Mapping[str, frozenset[str]]] = {
    "field": frozenset({"name", "type", "doc", "default", "order", "aliases"}),
    "record": frozenset({"type", "name", "namespace", "doc", "fields", "aliases"}),
    "enum": frozenset({"type", "name", "namespace", "doc", "symbols", "default", "aliases"}),
    "fixed": frozenset({"type", "name", "namespace", "doc", "size", "aliases"}),
    "array": frozenset({"type", "items"}),
    "map": frozenset({"type", "values"}),
}


class SchemaParseError(ValueError):
    """The text is no Avro schema."""


class Field(NamedTuple):
    name: str
    type: AvroType
    has_default: bool
    default: Any
    order: str
    aliases: tuple[str, ...]
    properties: dict[str, Any]
    doc: str | None


class AvroType:
    """One type. `kind` is Avro's word for it, or "union"; only the fields of that kind are set."""

    __slots__ = (
        "aliases",
        "branches",
        "default",
        "doc",
        "fields",
        "full_name",
        "items",
        "kind",
        "properties",
        "size",
        "symbols",
    )

    def __init__(self, kind: str, full_name: str = "") -> None:
        self.kind = "record" if kind == "error" else kind
        self.full_name = full_name
        self.doc: str | None = None
        self.aliases: tuple[str, ...] = ()
        self.properties: dict[str, Any] = {}
        self.fields: list[Field] = []
        self.symbols: list[str] = []
        self.default: str | None = None
        self.size = 0
        self.items: AvroType | None = None
        """The element type of an array or a map."""
        self.branches: list[AvroType] = []

    @property
    def name(self) -> str:
        return self.full_name.rpartition(".")[2]

    @property
    def namespace(self) -> str:
        return self.full_name.rpartition(".")[0]


def parse(text: str) -> AvroType:
    """Parse a schema. Raises SchemaParseError."""
    try:
        return _Parser().parse(json.loads(text), "", 0)
    except (RecursionError, ValueError) as error:
        if isinstance(error, SchemaParseError):
            raise
        raise SchemaParseError(str(error)) from error


class _Parser:
    def __init__(self) -> None:
        self._named: dict[str, AvroType] = {}

    def parse(self, given: Any, namespace: str, depth: int) -> AvroType:
        if depth > DEPTH_MAX:
            raise SchemaParseError("types are nested too deeply")
        if isinstance(given, str):
            return self._by_name(given, namespace)
        if isinstance(given, list):
            if len(given) > BRANCHES_MAX:
                raise SchemaParseError(f"a union of {len(given)} types, more than {BRANCHES_MAX}")
            union = AvroType("union")
            union.branches = [self.parse(branch, namespace, depth + 1) for branch in given]
            if any(branch.kind == "union" for branch in union.branches):
                raise SchemaParseError("Nested union")
            names = [branch.full_name or branch.kind for branch in union.branches]
            if len(set(names)) < len(names):
                raise SchemaParseError(f"Duplicate in union: {names}")
            return union
        if not isinstance(given, dict) or "type" not in given:
            raise SchemaParseError(f"No type: {json.dumps(given)[:100]}")
        kind = given["type"]
        if not isinstance(kind, str):
            return self.parse(kind, namespace, depth + 1)
        if kind in NAMED:
            return self._parse_named(kind, given, namespace, depth)
        if kind in ("array", "map"):
            made = AvroType(kind)
            part = "items" if kind == "array" else "values"
            if part not in given:
                raise SchemaParseError(f"No {part} type: {json.dumps(given)[:100]}")
            made.items = self.parse(given[part], namespace, depth + 1)
        elif kind in PRIMITIVES:
            made = AvroType(kind)
        else:
            return self._by_name(kind, namespace)
        made.properties = _properties(given, kind)
        return made

    def _by_name(self, name: str, namespace: str) -> AvroType:
        if name in PRIMITIVES:
            return AvroType(name)
        found = self._named.get(_full_name(name, namespace)) or self._named.get(name)
        if found is None:
            raise SchemaParseError(f"Type not supported: {name}")
        return found

    def _parse_named(self, kind: str, given: dict[str, Any], namespace: str, depth: int) -> AvroType:
        name = given.get("name")
        if not isinstance(name, str) or not name:
            raise SchemaParseError(f"No name in schema: {json.dumps(given)[:100]}")
        made = AvroType(kind, _full_name(name, given.get("namespace") or namespace))
        if made.full_name in self._named or made.full_name in PRIMITIVES:
            raise SchemaParseError(f"Can't redefine: {made.full_name}")
        self._named[made.full_name] = made
        made.doc = given.get("doc")
        made.aliases = tuple(_full_name(alias, made.namespace) for alias in _texts(given.get("aliases")))
        made.properties = _properties(given, "record" if kind == "error" else kind)
        if kind == "enum":
            made.symbols = _texts(given.get("symbols"))
            made.default = given.get("default")
            if "symbols" not in given:
                raise SchemaParseError(f"Enum has no symbols: {made.full_name}")
        elif kind == "fixed":
            size = given.get("size")
            if not isinstance(size, int) or isinstance(size, bool):
                raise SchemaParseError(f"Invalid or no size: {made.full_name}")
            made.size = size
        else:
            made.fields = self._fields(given, made, depth)
        return made

    def _fields(self, given: dict[str, Any], record: AvroType, depth: int) -> list[Field]:
        listed = given.get("fields")
        if not isinstance(listed, list):
            raise SchemaParseError(f"Record has no fields: {record.full_name}")
        fields = []
        for one in listed:
            if not isinstance(one, dict) or not isinstance(one.get("name"), str) or "type" not in one:
                raise SchemaParseError(f"No field name or type in {record.full_name}")
            kind = self.parse(one["type"], record.namespace, depth + 1)
            fields.append(
                Field(
                    one["name"],
                    kind,
                    "default" in one,
                    one.get("default"),
                    str(one.get("order", "ascending")).lower(),
                    tuple(_texts(one.get("aliases"))),
                    _properties(one, "field"),
                    one.get("doc"),
                )
            )
        if len({field.name for field in fields}) < len(fields):
            raise SchemaParseError(f"Duplicate field in record {record.full_name}")
        return fields


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _texts(given: Any) -> list[str]:
    if given is None:
        return []
    if not isinstance(given, list) or not all(isinstance(item, str) for item in given):
        raise SchemaParseError(f"a list of names is wanted, not {json.dumps(given)[:100]}")
    return given


def _properties(given: Mapping[str, Any], kind: str) -> dict[str, Any]:
    reserved = _RESERVED.get(kind, frozenset({"type"}))
    return {key: value for key, value in given.items() if key not in reserved}


# -- written again -----------------------------------------------------------------------------------------


def to_json(schema: AvroType, *, documented: bool = True) -> Any:
    """The schema as Avro prints it, with repeated types by name. Without documentation and aliases, two
    schemas have equal results if and only if Avro considers them equal.
    """
    return _to_json(schema, "", set(), documented)


def _to_json(schema: AvroType, namespace: str, seen: set[str], documented: bool) -> Any:
    kind = schema.kind
    if kind == "union":
        return [_to_json(branch, namespace, seen, documented) for branch in schema.branches]
    if kind in PRIMITIVES:
        return {"type": kind, **schema.properties} if schema.properties else kind
    if kind in ("array", "map"):
        assert schema.items is not None
        part = "items" if kind == "array" else "values"
        return {"type": kind, part: _to_json(schema.items, namespace, seen, documented), **schema.properties}
    if schema.full_name in seen:
        return schema.name if schema.namespace == namespace else schema.full_name
    seen.add(schema.full_name)
    shown: dict[str, Any] = {"type": kind, "name": schema.name}
    if schema.namespace != namespace:
        shown["namespace"] = schema.namespace
    if documented and schema.doc is not None:
        shown["doc"] = schema.doc
    if kind == "enum":
        shown["symbols"] = schema.symbols
        if schema.default is not None:
            shown["default"] = schema.default
    elif kind == "fixed":
        shown["size"] = schema.size
    else:
        shown["fields"] = [_field_json(f, schema.namespace, seen, documented) for f in schema.fields]
    shown |= schema.properties
    if documented and schema.aliases:
        shown["aliases"] = list(schema.aliases)
    return shown


def _field_json(field: Field, namespace: str, seen: set[str], documented: bool) -> dict[str, Any]:
    shown: dict[str, Any] = {"name": field.name, "type": _to_json(field.type, namespace, seen, documented)}
    if documented and field.doc is not None:
        shown["doc"] = field.doc
    if field.has_default:
        shown["default"] = field.default
    if field.order != "ascending":
        shown["order"] = field.order
    if documented and field.aliases:
        shown["aliases"] = list(field.aliases)
    return shown | field.properties


def are_equal(one: AvroType, other: AvroType) -> bool:
    """As Avro's `Schema.equals`: documentation and aliases do not count, the order of fields does."""
    return _canonical(one) == _canonical(other)


def _canonical(schema: AvroType) -> str:
    return json.dumps(to_json(schema, documented=False), sort_keys=True)


def pretty(schema: AvroType) -> str:
    """As Avro's `toString(true)`, which Pulsar puts into its errors."""
    return _pretty(to_json(schema), "")


def _pretty(value: Any, indent: str) -> str:
    if isinstance(value, dict):
        inner = indent + "  "
        lines = [f"{inner}{json.dumps(key)} : {_pretty(item, inner)}" for key, item in value.items()]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}" if lines else "{ }"
    if isinstance(value, list):
        return "[ " + ", ".join(_pretty(item, indent) for item in value) + " ]" if value else "[ ]"
    return json.dumps(value, ensure_ascii=False)
