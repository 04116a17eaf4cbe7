"""Decides whether an Avro schema can read data that was written with another one. Pure.

No library decides that without data. This follows Avro 1.11's `Resolver`, even where the specification is
stricter: names of records do not count outside of unions, and a symbol that an enum has lost is no error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from geminga.broker.schemas.avro import AvroType

PROMOTIONS: Final[Mapping[str, frozenset[str]]] = {
    "int": frozenset({"long", "float", "double"}),
    "long": frozenset({"float", "double"}),
    "float": frozenset({"double"}),
    "string": frozenset({"bytes"}),
    "bytes": frozenset({"string"}),
}


def can_read(writer: AvroType, reader: AvroType) -> bool:
    """Whether one schema can read all data that was written with the other. Types that refer to each other
    too deeply for the stack count as unreadable.
    """
    try:
        return _Resolution().resolves(writer, reader)
    except RecursionError:
        return False


class _Resolution:
    def __init__(self) -> None:
        self._seen: dict[tuple[int, int], bool] = {}

    def resolves(self, writer: AvroType, reader: AvroType) -> bool:
        if writer.kind == "union":
            return all(self.resolves(branch, reader) for branch in writer.branches)
        if reader.kind == "union":
            branch = self._branch(writer, reader)
            return branch is not None and self.resolves(writer, branch)
        if writer.kind != reader.kind:
            return reader.kind in PROMOTIONS.get(writer.kind, ())
        if writer.kind in ("array", "map"):
            assert writer.items is not None
            assert reader.items is not None
            return self.resolves(writer.items, reader.items)
        if writer.kind == "record":
            return self._records(writer, reader)
        if writer.kind == "enum":
            return _is_named(writer, reader)
        if writer.kind == "fixed":
            return _is_named(writer, reader) and writer.size == reader.size
        return True

    def _records(self, writer: AvroType, reader: AvroType) -> bool:
        pair = id(writer), id(reader)
        known = self._seen.get(pair)
        if known is not None:
            return known
        self._seen[pair] = True  # inside itself a recursive pair resolves if the rest does
        written = {field.name: field for field in writer.fields}
        fine = True
        for field in reader.fields:
            source = written.get(field.name)
            if source is None:
                source = next((written[alias] for alias in field.aliases if alias in written), None)
            fine = field.has_default if source is None else self.resolves(source.type, field.type)
            if not fine:
                break
        self._seen[pair] = fine
        return fine

    def _branch(self, writer: AvroType, reader: AvroType) -> AvroType | None:
        """The branch of the reader's union that takes the written type: by name, by structure,
        by promotion.
        """
        structure: AvroType | None = None
        for branch in reader.branches:
            if branch.kind != writer.kind:
                continue
            if not writer.full_name or _is_named(writer, branch):
                return branch
            is_better = structure is None or branch.name == writer.name
            if writer.kind == "record" and is_better and self._records(writer, branch):
                structure = branch
        if structure is not None:
            return structure
        wanted = PROMOTIONS.get(writer.kind, frozenset())
        return next((branch for branch in reader.branches if branch.kind in wanted), None)


def _is_named(writer: AvroType, reader: AvroType) -> bool:
    return writer.full_name == reader.full_name or writer.full_name in reader.aliases
