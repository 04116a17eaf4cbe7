"""Arrow columns in the form in which `PipelineOracle.java` writes values, and where two rows differ. Pure."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from geminga.wire import pulsar_pb2 as pb

METADATA: Final = (
    "__topic",
    "__key",
    "__keyBase64",
    "__orderingKey",
    "__eventTime",
    "__publishTime",
    "__messageProperties",
    "__sequenceId",
    "__producerName",
    "__schemaVersion",
    "__redeliveryCount",
)
"""As the Java client tells of them."""
PLACE: Final = ("__ledgerId", "__entryId", "__batchIndex", "__partition")
MORE: Final = (*PLACE, *METADATA[2:4], *METADATA[7:], "__undecrypted")
"""For the option `columns`."""
_BITS: Final = re.compile(r"^([fd][0-9a-f]+) ")
Row = dict[str, Any]
Place = tuple[int, ...]


def canonical(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    if isinstance(column, pa.ChunkedArray):
        return [value for chunk in column.chunks for value in canonical(chunk)]
    kind, valid = column.type, column.is_valid().to_pylist()
    if pa.types.is_struct(kind):
        parts = [canonical(part) for part in column.flatten()]
        names = [field.name for field in kind]
        found: Any = [dict(zip(names, row, strict=True)) for row in zip(*parts, strict=True)]
    elif pa.types.is_map(kind):
        pairs = list(zip(canonical(column.keys), canonical(column.items), strict=True))
        found = [sorted(map(list, some), key=_utf16) for some in _slices(column, pairs)]
    elif pa.types.is_list(kind):
        found = list(_slices(column, canonical(column.values)))
    elif pa.types.is_timestamp(kind):
        found = column.cast(pa.int64()).to_pylist()
    elif pa.types.is_date(kind):
        found = column.cast(pa.int32()).to_pylist()
    elif pa.types.is_floating(kind):
        found = _bits(column)
    elif pa.types.is_decimal(kind):
        found = [None if value is None else f"{value:f}" for value in column.to_pylist()]
    elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        found = [None if value is None else value.hex() for value in column.to_pylist()]
    else:
        found = column.to_pylist()
    return [value if is_valid else None for value, is_valid in zip(found, valid, strict=True)]


def _slices(column: pa.Array, inner: list[Any]) -> Iterator[list[Any]]:
    bounds = column.offsets.to_pylist()
    return (inner[start:end] for start, end in itertools.pairwise(bounds))


def _utf16(pair: list[Any]) -> bytes:
    """Java's order of texts."""
    return str(pair[0]).encode("utf-16-be")


def _bits(column: pa.Array) -> list[str]:
    is_float = column.type.bit_width == 32
    values = np.asarray(column.fill_null(0))
    values = np.where(np.isnan(values), np.array(np.nan, values.dtype), values)
    numbers = values.view(np.uint32 if is_float else np.uint64).tolist()
    return [
        f"{'f' if is_float else 'd'}{number:x} {value}"
        for number, value in zip(numbers, values.tolist(), strict=True)
    ]


def rows_of(table: pa.Table, names: Sequence[str]) -> dict[Place, Row]:
    """By ledger, entry, index in the batch and partition; `names`: of the value's columns. A row that is
    there twice is marked.
    """
    wanted = [*METADATA, *PLACE, "__messageId", "__undecrypted"]
    columns = {name: canonical(table[name]) for name in (*wanted, *names)}
    found: dict[Place, Row] = {}
    for number in range(table.num_rows):
        row = {name: column[number] for name, column in columns.items()}
        place = tuple(-1 if row[name] is None else row[name] for name in PLACE)
        made = {name: row[name] for name in METADATA}
        made |= {"id": row["__messageId"], "value": {name: row[name] for name in names}}
        if row["__undecrypted"]:
            made["undecrypted"] = True
        if place in found:
            made["twice"] = True
        found[place] = made
    return found


def expected_rows(lines: Sequence[Row]) -> dict[Place, Row]:
    """What the Java client read, in the same form."""
    kept = (*METADATA, "value")
    return {
        tuple(line["place"]): {name: line[name] for name in kept} | {"id": comparable_id(line["id"])}
        for line in lines
    }


def comparable_id(message_id: str) -> str:
    """Without what Java 4.0 says more than the pipeline and the client of C++ do: that the batch of a message
    that is in none has no messages, and where the first chunk of a chunked message is.
    """
    found = pb.MessageIdData.FromString(bytes.fromhex(message_id))
    found.ClearField("first_chunk_message_id")
    if not found.HasField("batch_index"):
        found.ClearField("batch_size")
    return found.SerializeToString().hex()


def differences(expected: dict[Place, Row], found: dict[Place, Row]) -> Iterator[str]:
    """Each as a line: the message, what differs, the Java client's value, ours."""
    for place, row in expected.items():
        ours = found.get(place)
        if ours is None:
            yield f"{place}: missing here, Java has {_text(row)}"
            continue
        for path, its, our in differing(row, ours):
            yield f"{place} id {row['id']} {path}: Java {_text(its)}, here {_text(our)}"
    for place in found.keys() - expected.keys():
        yield f"{place}: Java has no such message, here {_text(found[place])}"


def differing(its: Any, ours: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where within two values, and what is there in each."""
    if isinstance(its, dict) and isinstance(ours, dict):
        for name in its.keys() | ours.keys():
            yield from differing(its.get(name), ours.get(name), f"{path}.{name}")
    elif isinstance(its, list) and isinstance(ours, list) and len(its) == len(ours):
        for index, (one, other) in enumerate(zip(its, ours, strict=True)):
            yield from differing(one, other, f"{path}[{index}]")
    elif type(its) is not type(ours) or _plain(its) != _plain(ours):
        yield path, its, ours


def _plain(value: Any) -> Any:
    """Java and Python print the same number in other words; its bits decide."""
    if isinstance(value, str) and (found := _BITS.match(value)):
        return found[1]
    return value


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=True)[:300]
