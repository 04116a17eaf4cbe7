"""Topics that the pipeline read and wrote back: how they are written, how the Java client is to read them,
and what has to be the same. Pure.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

from tests.pipeline.oracle.canonical import Place, Row, differing
from tests.pipeline.oracle.plans import PRIMITIVES, Plan

SAME: Final = ("__key", "__keyBase64", "__orderingKey", "__eventTime", "__messageProperties", "value")
"""Everything else belongs to the copy: ids, times, its producer, its schema's versions."""
SUFFIX: Final = "-copy"


def options_of(plan: Plan) -> dict[str, str]:
    """For Spark's writer: the schema of each value as it was."""
    version = plan["versions"][-1]
    options = {
        "topic": plan["topic"] + SUFFIX,
        "partitioning": "partition" if plan["partitions"] else "single",
    }
    if version["kind"] != "KEY_VALUE":
        return options | {"valueSchema": _word(version)}
    return options | {
        "keyValueEncoding": version["encoding"].lower(),
        "keySchema": _word(version["key"]),
        "valueSchema": _word(version["value"]),
    }


def _word(version: Plan) -> str:
    kind: str = version["as"] if version["kind"] == "CLASS" else version["kind"]
    return "auto" if kind == "BYTES" else kind.lower()


def plan_of(plan: Plan, schema: dict[str, Any] | None) -> Plan:
    """What the Java program is to read: the copy of this topic, which has this schema in the registry (as the
    admin API gives it).
    """
    return {
        "topic": plan["topic"] + SUFFIX,
        "seed": 0,
        "partitions": plan["partitions"],
        "encrypted": False,
        "read_only": True,
        "versions": [_version(schema)],
    }


def _version(schema: dict[str, Any] | None) -> Plan:
    if schema is None:
        return {"kind": "BYTES"}
    kind, properties = schema["type"], schema["properties"]
    if kind != "KEY_VALUE":
        return _part(kind, schema["data"])
    parts = json.loads(schema["data"])
    return {
        "kind": kind,
        "encoding": properties["kv.encoding.type"],
        **{
            name: _part(properties[f"{name}.schema.type"], json.dumps(parts[name]))
            for name in ("key", "value")
        },
    }


def _part(kind: str, definition: str) -> Plan:
    return {"kind": kind} if kind in PRIMITIVES else {"kind": kind, "definition": json.loads(definition)}


def count_sequence_ids(rows: dict[Place, Row]) -> None:
    """The pipeline writes one for a batch, as the broker asks for; the Java client takes it for each of the
    messages, and the pipeline counts on from it.
    """
    for place, row in rows.items():
        row["__sequenceId"] += max(place[2], 0)


def changes(plan: Plan, original: dict[Place, Row], copy: dict[Place, Row]) -> Iterator[str]:
    """What the Java client reads differently in a copy, each as a line. Messages are compared in the order of
    their partition. The key of a pair that is sent as the message's key has other bytes, as the columns of a
    DataFrame may all be null; its value is compared.
    """
    is_separated = plan["versions"][-1].get("encoding") == "SEPARATED"
    names = [name for name in SAME if not (is_separated and name in ("__key", "__keyBase64"))]
    before, after = _by_partition(original), _by_partition(copy)
    for partition in before.keys() | after.keys():
        one, other = before[partition], after[partition]
        if len(one) != len(other):
            yield f"partition {partition}: {len(one)} messages, written back {len(other)}"
        for (place, row), (_, found) in zip(one, other, strict=False):
            for name in names:
                for path, its, ours in differing(row[name], found[name], name):
                    before_text, after_text = json.dumps(its)[:300], json.dumps(ours)[:300]
                    yield f"{place} {path}: read {before_text}, written back {after_text}"


def _by_partition(rows: dict[Place, Row]) -> defaultdict[int, list[tuple[Place, Row]]]:
    found: defaultdict[int, list[tuple[Place, Row]]] = defaultdict(list)
    for place in sorted(rows):
        found[place[-1]].append((place, rows[place]))
    return found
