"""The delayed index in memory, synchronous and without I/O: membership, growing end, sealed buckets, views.

A position comes in by `View.add_many` (a dispatcher has read it) or `DelayedIndex.append` (a shared index is
fed when the entry is stored). `Membership` records that it waits; `Feed`, the LastMutableBucket, records
when. A full mutable part becomes `Frozen`, later a `Bucket` (ImmutableBucket) in `bucket_map.py`. When times
come, `Queue.gather` in `sources.py`, the SharedBucketPriorityQueue, merges the sources in the order of (time,
ledger, entry) into a `DueBatch`, and each `Reader` walks along the batches at its own pace. Read
`DelayedIndex` in `index.py` first, then `Reader`; `View`, the DelayedDeliveryTracker, is what a dispatcher
holds and asks.

The bitmaps of `Membership` (roaring, one for each ledger) are the truth, rows with times only follow them: a
row without its bit is dead and skipped. So cancel, acknowledge, clear and losing a bucket are bitmap
operations, and the count of delayed messages is a cardinality. Keep it that way: rows are never searched for
a position in order to delete it. One index serves all subscriptions of a topic through views, where PIP-195
has a tracker for each. Nothing here may await, read a file or hold a ledger: `tests/test_imports.py` checks
the imports.
"""
