"""Faults that a user may switch on in a running broker: damage to buckets of the delayed index (`--chaos`).

A request such as `geminga delayed lose-bucket orders -s billing` goes through `admin/routes/delayed.py` and
`broker/operator/delayed_view.py`, which refuses it without `--chaos`, to `damage_bucket` in
`bucket_damage.py`: it deletes a bucket's ledger, or puts one in its place that has only the first half of its
entries, or one with a flipped bit in the segment that will be read next.

The broker looks at that bucket at once, finds a missing ledger, a missing directory or a wrong CRC-32C, and
has what the bucket spans read again from the backlog. With `--quietly` it is not told, and finds out as it
would with a disk that lies: when a segment is due, at a start, or by `geminga delayed verify`. Every message
still arrives, and none early.

Must not be broken: nothing here is reachable without the setting `chaosEnabled`, and no message is touched,
only buckets, whose loss costs a re-read. A room of its own so that the import table shows what depends on it.
The simulated disk and the crash campaigns are not here but in `simulation`, beside the package and in no
release.
"""
