"""Converts payloads to typed columns and back, by the topic's schema.

Reading: `fetch_schema` (`schemas.py`) asks the registry through the admin API, `value_fields` returns the
columns of a schema, and `ValueDecoder` (`decoding.py`) decodes a column of payloads; it fetches older
versions of a schema when a message needs them. Writing: `value_encoder` and `pair_encoder`
(`value_encoding.py`) choose schema and encoding for a DataFrame's columns, `rows_of` (`row_columns.py`) takes
key, properties and times. Read `decoding.py` first, then `avro_shapes.py`, which maps AVRO types to column
types.

Types are those of the JVM connector: a union of several types is a struct of member0, member1 and so on, int
with long becomes bigint. JSON schemas have AVRO definitions too, so one mapping serves both. Primitive values
are big-endian, as the Java client encodes them.

Must not be broken: a value is decoded as the official client that wrote it would decode it, nulls included; a
value that does not match its schema raises `SchemaMismatch`, and never becomes another value silently; topics
that are read together must have one schema. Compiled code decodes wherever possible, and Python row by row
only what that code refuses. Compatibility rules between schemas belong to `broker/schemas`.
"""
