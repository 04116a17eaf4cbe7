"""Bulk work on stored data: buckets of the delayed index, rescue of a bookie's files, capacity plans.

Rebuild: a backlog is rows of position and due time from Parquet, a stopped broker's files (`backlog.py`) or a
running broker (`served.py`); `cut` (`buckets.py`) makes ranges of positions, `encode_range` a bucket of each,
`check_bucket` compares buckets with the backlog, `store.py` or `served.py` loads them. Rescue:
`plan` (`rescue_files.py`) finds entry logs and journals, `take_inventory` and `rescued_batches` (`rescue.py`)
give every whole record once. Capacity: `capacity.py` serialises what a plan would hold. Read `buckets.py`
first, then `rescue.py`.

Buckets here are the bytes of `tracker/format`, which a broker takes in like its own, as with PIP-195
snapshots of ImmutableBuckets; `capacity.py` compares them with the structure of Pulsar pull request 23611.

Must not be broken: ranges leave no position out, and each is once in a result; buckets that are there may
overlap; a rescue writes nothing to a bookie's files and trusts a record by its checksum alone, so it works
without index or metadata. Many records of one length are checked at once (`record_columns.py`), damaged ones
singly. Serving an index belongs to `tracker`, verification with an index to `bookie/offline`.
"""
