"""Bulk work on stored data: buckets of the delayed index, rescue of a bookie's files, capacity plans.

Rebuild: a backlog is rows of position and due time, from Parquet, from a stopped broker's files
(`backlog.py`) or from a running broker (`served.py`). `cut` (`buckets.py`) divides it into ranges of
positions, `encode_range` makes a bucket of each, `check_bucket` compares buckets with the backlog, and
`store.py` or `served.py` loads them. Rescue: `plan` (`rescue_files.py`) finds entry logs and journals,
`take_inventory` and `rescued_batches` (`rescue.py`) return every valid record once. Capacity: `capacity.py`
serialises the index of a planned backlog. Read `buckets.py` first, then `rescue.py`.

Buckets here have the bytes of `tracker/format`, and a broker serves them like its own, as with PIP-195's
snapshots of ImmutableBuckets. `capacity.py` compares them with the structure of Pulsar pull request 23611.

Must not be broken: ranges cover all positions, and a result has each position once; existing buckets may
overlap; a rescue never writes to a bookie's files and trusts a record by its checksum alone, so it works
without index or metadata. Records of one length are checked together (`record_columns.py`), damaged ones one
by one. Serving an index belongs to `tracker`, verification with an index to `bookie/offline`.
"""
