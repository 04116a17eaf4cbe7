"""The delayed index as bytes: rows, segments, bucket directories, changed due times. Pure functions on numpy.

`rows.py` has the columns (due time, and `ledger << 32 | entry` as one number) that all other modules
exchange: read `Rows` first. Rows that stay in memory are packed by `packed_rows.py`; rows that are sealed are
cut into segments, encoded and framed with a CRC-32C by `bucket_format.py`.
`StoredBucket` is a sealed bucket and the cursor or topic property that names it. `override_format.py` holds
due times that were changed by hand, `bucket_bundle_format.py` buckets in transit between processes.

A bucket here plays the part of Pulsar's ImmutableBucket snapshot (PIP-195), in a format of its own: segments
first and the directory last, so that a bucket of any size is written in one pass and a ledger that was cut
short is recognised by its missing directory. Packed columns of numbers replace the protobuf rows, so that a
row takes few bytes on disk and none of its own in Python. docs/formats/bucket.md describes the bytes with
examples that tests check; change both together.

Importing numpy costs 75 ms, so nothing that a start of the broker needs may import these modules. No I/O, no
clock, no knowledge of a bucket's owner.
"""
