"""Buckets of the delayed index on the bookie: sealed, loaded, merged, recovered at a start, deleted.

`Buckets` is the state of one index on the bookie: which buckets serve, what waits to be sealed, what is to be
deleted, which ledgers are unknown. Frozen rows arrive in `Buckets.seal`; `sealing.py` encodes them off the
loop and writes them to a ledger, `Buckets.name` has a property name that ledger, and from then on the bucket
serves. `Loader` reads the segments that are due soon, `merge_task.py` joins neighbours when there are more
buckets than `delayedDeliveryMaxNumBuckets`, `Buckets.run_deletions` removes what is released. `Recovery`
takes over what an earlier process left. Read `Buckets` in `buckets.py` first, then `run_buckets` in
`tasks.py`: five tasks that wait for each other only where properties change.

This is the I/O half of Pulsar's BucketDelayedDeliveryTracker and its BookkeeperBucketSnapshotStorage
(PIP-195). The order of a bucket's life makes a crash harmless and must stay: the ledger's metadata record,
its entries, the property that names it; for deletion the property, the ledger, its record. So no property
names a ledger that is not complete. A bucket that is missing or damaged costs a re-read of its own ledgers.
`merge_plan.py` and `merging.py` decide and merge without I/O; the plan bounds how often a row is rewritten.

What a tracked position is worth, and when it is due, is decided in `tracker/index`; bytes are in
`tracker/format`.
"""
