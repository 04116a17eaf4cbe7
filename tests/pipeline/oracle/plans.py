"""What the topics of a run are: their schemas, and how the Java client writes to them. Pure."""

from __future__ import annotations

import json
import random
from typing import Any, Final

from tests.pipeline.oracle.definitions import Definitions

PRIMITIVES: Final = (
    "BYTES",
    "STRING",
    "BOOLEAN",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "FLOAT",
    "DOUBLE",
    "DATE",
    "TIME",
    "TIMESTAMP",
    "INSTANT",
    "LOCAL_DATE",
    "LOCAL_TIME",
    "LOCAL_DATE_TIME",
)
CLASSES: Final = ("Plain", "Moments", "Dates", "Clocks", "Amounts")
COMPRESSIONS: Final = ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")
VERSIONS_MAX: Final = 4

Plan = dict[str, Any]
"""Of one topic, as the Java program takes it."""


def plans(seed: int, count: int, namespace: str, *, transactions: bool = False) -> list[Plan]:
    """Each follows from the seed and its own number alone. `transactions`: two topics of three have some."""
    return [
        _plan(random.Random(f"{seed}-{number}"), number, namespace)
        | {"transactions": transactions and number % 3 > 0}
        for number in range(count)
    ]


def _plan(rng: random.Random, number: int, namespace: str) -> Plan:
    drawn = rng.random()
    if drawn < 0.45:
        versions = _structured(rng, "AVRO", VERSIONS_MAX)
    elif drawn < 0.62:
        versions = _structured(rng, "JSON", 3)
    elif drawn < 0.79:
        versions = _pairs(rng)
    elif drawn < 0.9:
        versions = [_class(rng)]
    else:
        kind = PRIMITIVES[number % len(PRIMITIVES)]
        versions = [{"kind": kind}]
    chunk_bytes = rng.choice((0, 0, 0, 0, 200))
    return {
        "topic": f"persistent://{namespace}/topic-{number}",
        "partitions": rng.choice((0, 0, 0, 2)),
        "seed": rng.getrandbits(31),
        "versions": versions,
        "rows": [rng.choice((5, 30, 120)) for _ in versions],
        "batching": chunk_bytes == 0 and rng.random() < 0.75,
        "batch_rows": rng.choice((1, 7, 100)),
        "compression": rng.choice(COMPRESSIONS),
        "chunk_bytes": chunk_bytes,
        "encrypted": rng.random() < 0.15,
        "nulls": rng.choice((0.0, 0.05, 0.5)),
    }


def _class(rng: random.Random) -> Plan:
    """A class of the Java program, of which the client makes the schema; Jackson or AVRO writes it."""
    kind, encoding = rng.choice(CLASSES), rng.choice(("JSON", "AVRO"))
    return {"kind": "CLASS", "class": kind, "as": encoding, "jsr310": rng.random() < 0.5}


def _structured(rng: random.Random, kind: str, versions_max: int) -> list[Plan]:
    made = Definitions(rng, is_json=kind == "JSON")
    found = [made.record()]
    for _ in range(rng.randint(1, versions_max) - 1):
        found.append(made.later(found[-1]))
    different = {json.dumps(each): each for each in found}
    return [{"kind": kind, "definition": each} for each in different.values()]


def _pairs(rng: random.Random) -> list[Plan]:
    """The versions of a pair whose key keeps its own."""
    key, value = _part(rng), _part(rng)
    encoding = rng.choice(("INLINE", "SEPARATED"))
    return [{"kind": "KEY_VALUE", "encoding": encoding, "key": key[0], "value": each} for each in value]


def _part(rng: random.Random) -> list[Plan]:
    drawn = rng.random()
    if drawn < 0.4:
        return _structured(rng, "AVRO", 2)
    if drawn < 0.6:
        return _structured(rng, "JSON", 1)
    return [{"kind": rng.choice(PRIMITIVES)}]
