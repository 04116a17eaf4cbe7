"""The delayed index: which positions of a topic have to wait, and until when.

A position with a delivery time enters at the growing end (`index/feed.py`), is frozen when the mutable part
has enough rows, sealed as a bucket on the bookie (`buckets/sealing.py`), loaded segment by segment shortly
before it is due (`buckets/loading.py`), and handed to each subscription by its view (`index/view.py`).
Without buckets it skips the middle and stays in memory. Read `DelayedIndex` in `index/index.py` first, then
`Buckets` in `buckets/buckets.py`.

In Pulsar's terms (PIP-26, PIP-195): `DelayedIndex` alone is InMemoryDelayedDeliveryTracker, with `Buckets`
it is BucketDelayedDeliveryTracker; a tail of `Feed` (`Part`) is LastMutableBucket; `Bucket` in
`index/sources.py` is ImmutableBucket; `Queue` beside it is SharedBucketPriorityQueue; `BucketStore` is
BucketSnapshotStorage.

`format` and `index` do no I/O and `buckets` does all of it, so the decisions can be tested without a disk.
What must not be broken: the index only says when. The message is in the topic, so losing an index or a bucket
costs a second read of the backlog and never a message. Dispatch and policies do not belong here.
"""
