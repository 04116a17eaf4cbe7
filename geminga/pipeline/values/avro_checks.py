"""Whether the bytes of one AVRO value keep the rules, whatever its schema: fastavro lets some pass that break
them. An index of -1 is the last one to it, a number may have any length, -2^63 items are none, an array may
have 2^40 items that take no bytes, and a value that is nested too deep ends the process.
"""

from __future__ import annotations

from typing import Any

from geminga.pipeline.values.avro_cursor import (
    EMPTY_ITEMS_MAX,
    LEFT_OVER,
    TOO_MANY,
    ArrayWalk,
    Refused,
    Walk,
    block_of,
    walk_all,
    walk_enum,
    walk_nothing,
    walk_number,
    walk_span,
    walk_union,
    walk_width,
)

_WALKS: dict[str, Walk] = {
    "null": walk_nothing,
    "boolean": walk_width(1),
    "int": walk_number,
    "long": walk_number,
    "float": walk_width(4),
    "double": walk_width(8),
    "bytes": walk_span,
    "string": walk_span,
}
_PADDING = bytes(16)


class Check:
    """Of values of one writer's schema, which fastavro has parsed. For one thread."""

    def __init__(self, schema: Any) -> None:
        self._schema = schema
        # Records may be given another name once they have been parsed.
        self._own_name = schema.get("name") if isinstance(schema, dict) else None
        self._walk: Walk | None = None
        self._named: dict[str, Walk] = {}
        self._empty_items = 0

    def __call__(self, value: bytes) -> None:
        """Raises `Refused`, `RecursionError`; and what fastavro does where the schema means nothing."""
        if self._walk is None:
            self._walk = self._of(self._schema)
            if self._own_name is not None:
                self._named[self._own_name] = self._walk
        self._empty_items = 0
        if self._walk(value + _PADDING, 0, len(value)) != len(value):
            raise Refused(LEFT_OVER)

    def _of(self, schema: Any) -> Walk:
        if isinstance(schema, list):
            return walk_union([self._of(each) for each in schema])
        if isinstance(schema, str):
            return _WALKS.get(schema) or self._by_name(schema)
        kind = schema["type"]
        if kind == "enum":
            found = walk_enum(len(schema["symbols"]))
        elif kind == "fixed":
            found = walk_width(int(schema["size"])) if schema["size"] else walk_nothing
        elif kind in ("record", "error"):
            fields = [self._of(each["type"]) for each in schema["fields"]]
            takes_bytes = [each for each in fields if each is not walk_nothing]
            found = walk_all(takes_bytes) if takes_bytes else walk_nothing
        elif kind == "array":
            return self._items(self._of(schema["items"]))
        elif kind == "map":
            return self._items(walk_all([walk_span, self._of(schema["values"])]))
        else:
            return self._of(kind)
        self._named[schema["name"]] = found
        return found

    def _by_name(self, name: str) -> Walk:
        """One that is being made is in itself."""
        return self._named.get(name) or (lambda data, at, end: self._named[name](data, at, end))

    def _items(self, item: Walk) -> Walk:
        return ArrayWalk(item, None, 1) if item is not walk_nothing else self._empty

    def _empty(self, data: bytes, at: int, end: int) -> int:
        """An array of items that take no bytes: they are counted for the whole value."""
        while True:
            count, at = block_of(data, at, end)
            if count == 0:
                return at
            self._empty_items += count
            if self._empty_items > EMPTY_ITEMS_MAX:
                raise Refused(TOO_MANY)
