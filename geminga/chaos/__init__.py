"""Faults that a user may inject into a running broker (`--chaos`): rules, and damage to buckets at once.

A rule says where which fault is injected, how often and for how long (`rules/`). `geminga fault set` sends
it to `admin/routes/operator/faults.py`, and `broker/operator/faults_view.py` puts it in force. The code of
each place asks its door at each operation: `wire/` is between clients and the broker, `disk/` before files
and databases, `faulty_buckets.py` fails operations on buckets, `faulty_clock.py` is a wall clock that rules
set and let drift, and `geminga/admin/http/faulty.py` is before the routes of the admin port.

A request such as `geminga delayed lose-bucket orders -s billing` goes through `admin/routes/delayed.py` and
`broker/operator/delayed_view.py`, which refuses it without `--chaos`, to `damage_bucket` in
`bucket_damage.py`. That function deletes a bucket's ledger, or replaces it by one that has only the first
half of its entries, or a flipped bit in the segment that will be read next.

The broker checks that bucket at once, finds a missing ledger, a missing directory or a wrong CRC-32C, and
reads the bucket's range again from the backlog. With `--quietly` the broker is not notified. It then finds
the damage as it would with a disk that returns wrong bytes: when a segment is due, at a start, or by
`geminga delayed verify`. Every message still arrives, and none early.

Invariants: no code here can be reached without the setting `chaosEnabled`, and no message is changed, only
buckets, whose loss costs a second read. This is a room of its own so that the import table shows which code
depends on it. The simulated disk and the crash campaigns are in `simulation`, beside the package and in no
release.
"""
