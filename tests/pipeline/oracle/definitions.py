"""Random AVRO definitions that Java's Pulsar client takes, and later versions of them that read the earlier
ones. Pure: the same generator of random numbers gives the same definitions.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any, Final

DEPTH_MAX: Final = 3
PLAIN: Final = ("boolean", "int", "long", "float", "double", "bytes", "string")
LOGICAL: Final = (
    ("int", "date"),
    ("int", "time-millis"),
    ("long", "time-micros"),
    ("long", "timestamp-millis"),
    ("long", "timestamp-micros"),
    ("long", "local-timestamp-millis"),
    ("string", "uuid"),
    ("string", "date"),  # does not fit its plain type, so it means nothing
)
WIDER: Final = {"int": ("long", "float", "double"), "long": ("float", "double"), "float": ("double",)}
SPECIAL_NAMES: Final = ("value", "key", "topic", "type", "fields", "member0", "Straße", "_")
TEXTS: Final = ("", "x", "Jürgen", "a longer text, with \u2028 and \U0001f600", "null", "\u0000")

Definition = Any
"""As `json.loads` gives it."""


class Definitions:
    """Draws one schema: `record()` is its definition."""

    def __init__(self, rng: random.Random, *, is_json: bool) -> None:
        self._rng = rng
        self._is_json = is_json
        """JSON does not tell which type of a union a value has."""
        self._count = 0
        self._reusable: list[str] = []
        self._renames_records = rng.random() < 0.5
        """Aliases of fields belong to a record's name: Java does not find them if that changes too."""
        self._namespace = rng.choice(("", "", "orders", "com.example.orders"))

    def _name(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def record(self, depth: int = 0) -> Definition:
        rng = self._rng
        name = self._name("Record")
        made: dict[str, Any] = {"type": "record", "name": name}
        namespace = self._namespace
        if depth == 0 and namespace:
            made["namespace"] = namespace
        elif depth and rng.random() < 0.1:
            made["namespace"] = namespace = f"other{self._count}"
        outer, self._namespace = self._namespace, namespace
        count = rng.randint(1, 7) if depth == 0 else rng.randint(1, 4)
        names = [self._field_name() for _ in range(count)]
        made["fields"] = [self.field(each, depth) for each in _distinct(names)]
        self._namespace = outer
        if depth:
            self._reusable.append(_full(namespace, name))
        return made

    def _field_name(self) -> str:
        if self._rng.random() < 0.12:
            return self._rng.choice(SPECIAL_NAMES)
        return self._name("field")

    def field(self, name: str, depth: int, *, needs_default: bool = False) -> Definition:
        rng = self._rng
        kind = self.kind(depth)
        found = {"name": name, "type": kind}
        if rng.random() < 0.4 and not isinstance(kind, list):
            found["type"] = ["null", kind] if rng.random() < 0.75 else [kind, "null"]
        if needs_default or rng.random() < 0.3:
            default = self.default(found["type"])
            if default is _NONE:  # a type by its name
                found["type"], default = ["null", kind], None
            found["default"] = default
        if rng.random() < 0.1:
            found["doc"] = "documented"
        return found

    def kind(self, depth: int) -> Definition:
        rng = self._rng
        drawn = rng.random()
        if drawn < 0.42:
            return rng.choice(PLAIN)
        if drawn < 0.58:
            plain, logical = rng.choice(LOGICAL)
            return {"type": plain, "logicalType": logical}
        if drawn < 0.66:
            return self._decimal()
        if drawn < 0.72:
            return self._enum()
        if drawn < 0.76:
            made = {"type": "fixed", "name": self._name("Fixed"), "size": rng.choice((1, 3, 16))}
            self._reusable.append(_full(self._namespace, made["name"]))
            return made
        if drawn < 0.79 and self._reusable:
            return rng.choice(self._reusable)
        if depth >= DEPTH_MAX:
            return rng.choice(PLAIN)
        if drawn < 0.84 and not self._is_json:
            return self._union(depth)
        if drawn < 0.90:
            return {"type": "array", "items": self._part(depth + 1)}
        if drawn < 0.95:
            return {"type": "map", "values": self._part(depth + 1)}
        return self.record(depth + 1)

    def _part(self, depth: int) -> Definition:
        kind = self.kind(depth)
        return ["null", kind] if self._rng.random() < 0.3 and not isinstance(kind, list) else kind

    def _decimal(self) -> Definition:
        rng = self._rng
        digits = rng.choice((1, 4, 9, 18, 19, 28, 38))
        logical = {"logicalType": "decimal", "precision": digits, "scale": rng.randint(0, digits)}
        if rng.random() < 0.6:
            return {"type": "bytes", **logical}
        size = next(each for each in range(1, 20) if 10**digits <= 2 ** (8 * each - 1)) + rng.randint(0, 2)
        return {"type": "fixed", "name": self._name("Amount"), "size": size, **logical}

    def _enum(self) -> Definition:
        symbols = [f"S{index}" for index in range(self._rng.randint(1, 5))]
        made: dict[str, Any] = {"type": "enum", "name": self._name("Enum"), "symbols": symbols}
        if self._rng.random() < 0.5:
            made["default"] = self._rng.choice(symbols)
        self._reusable.append(_full(self._namespace, made["name"]))
        return made

    def _union(self, depth: int) -> Definition:
        rng = self._rng
        made = list(
            rng.choice(
                (
                    ["int", "long"],
                    ["float", "double"],
                    ["string", "int"],
                    ["string", "bytes", "boolean"],
                    ["long", "double", "string"],
                    [{"type": "long", "logicalType": "timestamp-millis"}, "string"],
                )
            )
        )
        if rng.random() < 0.3:
            made.append(self.record(depth + 1))
        if rng.random() < 0.3:
            made.append(self._enum() if "string" not in made else self._decimal_of(made))
        if rng.random() < 0.5:
            made.insert(rng.choice((0, len(made))), "null")
        return made

    def _decimal_of(self, made: list[Definition]) -> Definition:
        return {"type": "array", "items": "int"} if "bytes" in made else self._decimal()

    def default(self, kind: Definition) -> Any:
        """As a definition writes it; `_NONE` for a type that is named alone."""
        rng = self._rng
        if isinstance(kind, list):
            return self.default(kind[0])
        if isinstance(kind, str):
            kind = {"type": kind}
        plain = kind["type"]
        if kind.get("logicalType") == "decimal":
            return self._decimal_default(kind)
        match plain:
            case "null":
                return None
            case "boolean":
                return rng.random() < 0.5
            case "int":
                return rng.choice((0, -1, 12345))
            case "long":
                return rng.choice((0, -7, 1_700_000_000_000))
            case "float" | "double":
                return rng.choice((0.0, -1.5, 0.1))
            case "string":
                return rng.choice(TEXTS)
            case "bytes":
                return rng.choice(("", "\u00ff\u0000a", "text"))
            case "fixed":
                return "\u00fe" * kind["size"]
            case "enum":
                return rng.choice(kind["symbols"])
            case "array":
                items = self.default(kind["items"])
                return [] if items is _NONE or rng.random() < 0.5 else [items]
            case "map":
                values = self.default(kind["values"])
                return {} if values is _NONE or rng.random() < 0.5 else {"k": values}
            case "record":
                found = {each["name"]: self.default(each["type"]) for each in kind["fields"]}
                return _NONE if _NONE in found.values() else found
        return _NONE

    def _decimal_default(self, kind: Definition) -> str:
        size = kind.get("size", 1)
        return (self._rng.choice((0, 5, -9))).to_bytes(size, "big", signed=True).decode("latin-1")

    def later(self, definition: Definition) -> Definition:
        """Another version, changed in one to three places."""
        found = copy.deepcopy(definition)
        for _ in range(self._rng.randint(1, 3)):
            record = self._rng.choice(list(_records(found)))
            self._change(record, is_top=record is found)
        return found

    def _change(self, record: Definition, *, is_top: bool) -> None:
        rng, fields = self._rng, record["fields"]
        one = rng.choice(fields)
        match rng.randrange(10):
            case 0 | 1 | 2:
                outer, self._namespace = self._namespace, _NO_NAMES  # its names stand for themselves
                reusable, self._reusable = self._reusable, []
                added = self.field(self._name("added"), 2, needs_default=True)
                self._namespace, self._reusable = outer, reusable
                fields.insert(rng.randint(0, len(fields)), added)
            case 3 if len(fields) > 1 and not _defines(one["type"]):
                fields.remove(one)
            case 4:
                rng.shuffle(fields) if not any(_defines(each["type"]) for each in fields) else None
            case 5 if not isinstance(one["type"], list):
                one.pop("default", None)
                one["type"] = ["null", one["type"]]
                if rng.random() < 0.7:
                    one["default"] = None
            case 6 if isinstance(one["type"], str) and one["type"] in WIDER:
                one["type"] = rng.choice(WIDER[one["type"]])
                one.pop("default", None)
            case 6 if one["type"] in ("string", "bytes") and not self._is_json:
                one["type"] = "bytes" if one["type"] == "string" else "string"
                one.pop("default", None)
            case 7:
                for each in fields:
                    if isinstance(each["type"], dict) and each["type"]["type"] == "enum":
                        each["type"]["symbols"].append(self._name("T"))
            case 8 if not (self._is_json or self._renames_records) and not _defines(one["type"]):
                one["aliases"] = [one["name"]]
                one["name"] = self._name("renamed")
            case 9 if is_top and not self._is_json and self._renames_records:
                record["name"] = self._name("Renamed")
            case _:
                one["doc"] = self._name("documented")


_NONE: Final = object()
_NO_NAMES: Final = ""


def _full(namespace: str, name: str) -> str:
    return f"{namespace}.{name}" if namespace else name


def _distinct(names: list[str]) -> list[str]:
    """By lower case: Spark cannot tell columns apart that differ by case."""
    return list({each.lower(): each for each in names}.values())


def _records(definition: Definition) -> Iterator[Definition]:
    """Every record that is defined in it and that no default has values of."""
    if isinstance(definition, list):
        for each in definition:
            yield from _records(each)
    elif isinstance(definition, dict):
        if definition["type"] == "record":
            yield definition
            for each in definition["fields"]:
                if each.get("default") is None:
                    yield from _records(each["type"])
        else:
            for name in ("items", "values"):
                yield from _records(definition.get(name))


def _defines(definition: Definition) -> bool:
    """Whether a named type is in it, which other fields may refer to."""
    return '"name"' in json.dumps(definition)
