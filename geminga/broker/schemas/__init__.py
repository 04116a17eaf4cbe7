"""Schemas of topics: stored versions, which schema may follow which, and what a consumer may read.

A producer's schema comes to `SchemaRegistry.add` by way of `connection/handle_schemas.py`, the admin API's by
`admin/routes/schemas.py`. The registry looks for the same schema, else checks it against earlier versions by
the strategy that holds, and stores it as a record; the version number is known once that is durable. Read
`SchemaRegistry` in `registry.py` first, then `check_follows` in `checks.py`.

Only the registry touches the metadata. All else is pure: `avro.py` parses and prints, `resolution.py` decides
whether one Avro schema reads what another wrote, because no library decides that without data. Rules and
texts are Pulsar 4.0's SchemaCompatibilityCheck and Avro 1.11's Resolver, recorded case by case from a real
broker (`tests/e2e/operators/schema_recording.json`).

Must not be broken: partitions share their topic's schemas; a deletion is a mark, and version numbers are not
used again; recursion in hostile schemas ends as "unreadable" and not in a stack overflow. Messages are never
decoded or validated against a schema here or anywhere in the broker; that is for clients, and for
`pipeline/values`.
"""
