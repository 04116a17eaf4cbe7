"""Looking into a stopped bookie's files: lists, single records, a full verification. Writes nothing.

`inspection.py` walks records of entry logs, lists journals and finds what a start would still replay; read
`walk_records` and `unflushed` there first. `Verification` checks every checksum, footers against records,
index rows against the records they name, and the sums that the index keeps, and reports each `Finding` as it
is made.

These are the parts behind `geminga bookie` (the counterpart of BookKeeper's `bookkeeper shell`) and behind
the rescue in `pipeline/buckets`. They take paths and an already locked directory rather than a `Bookie`,
because the files may be so damaged that a bookie would refuse them, and because opening one runs recovery and
changes what was to be looked at. One window of a file is in memory at a time: entry logs are large.

Must not be broken: read-only, and no finding for bytes that were never promised (a torn end, a file that was
being reused). Printing and exit codes belong to `cli/bookie`, repair to `bookie/recovery`.
"""
