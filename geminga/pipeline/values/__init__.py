"""Payloads to typed columns and back, by the topic's schema.

Reading: `fetch_schema` (`schemas.py`) asks the registry through the admin API, `value_fields` says which
columns a schema becomes, and `ValueDecoder` (`decoding.py`) decodes a column of payloads; schemas of older
versions are fetched on sight. Writing: `value_encoder` (`value_encoding.py`) chooses schema and encoding for
a DataFrame's columns, `rows_of` (`row_columns.py`) takes key, properties and times. Read `decoding.py` first,
then `avro_shapes.py`, which maps AVRO types to column types.

Types are those of the JVM connector: a union of several types is a struct of member0, member1 and so on, int
with long becomes bigint. JSON schemas have AVRO definitions too, so one mapping serves both. Primitive values
are as the Java client encodes them, big-endian.

Must not be broken: what one client wrote is read as that client would read it, nulls included; a value that
does not match its schema is a `SchemaMismatch` in words, never a silently different value; topics that are
read together must have one schema. Decoding is by compiled code wherever possible and row by row only for
what that refuses. Compatibility rules between schemas belong to `broker/schemas`.
"""
