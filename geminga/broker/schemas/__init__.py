"""Schemas of topics: stored versions, which schema may follow which, and which schemas a consumer may use.

`connection/handle_schemas.py` passes a producer's schema to `SchemaRegistry.add`; `admin/routes/schemas.py`
passes the admin API's. The registry searches for an equal schema. If there is none, it checks the schema
against earlier versions by the effective strategy, and stores it as a record; the version number is known
once that is durable. Read `SchemaRegistry` in `registry.py` first, then `check_follows` in `checks.py`.

Only the registry uses the metadata. All other modules are pure: `avro.py` parses and prints; `resolution.py`
decides whether one Avro schema can read data of another, because no library decides that without data. Rules
and texts are those of Pulsar 4.0's SchemaCompatibilityCheck and Avro 1.11's Resolver, recorded case by case
from a real broker (`tests/e2e/operators/schema_recording.json`).

Invariants: partitions share their topic's schemas. A deletion is a mark, and version numbers are not used
again. Recursion in hostile schemas ends as "unreadable" and not in a stack overflow. The broker never
decodes messages or validates them against a schema; clients do that, and `pipeline/values`.
"""
