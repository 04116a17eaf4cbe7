"""Reads a stopped bookie's files: lists, single records, a full verification. Writes nothing.

`inspection.py` walks records of entry logs, lists journals and finds the entries that a start would replay;
read `walk_records` and `unflushed` there first. `Verification` checks every checksum, footers against
records, index rows against their records, and the sums in the index. It reports each `Finding` at once.

`geminga bookie` (the counterpart of BookKeeper's `bookkeeper shell`) and the rescue in `pipeline/buckets`
use these parts. They take paths and a locked directory instead of a `Bookie`: the files may be so damaged
that a bookie would refuse them, and opening a bookie runs recovery, which changes the files. One window of a
file is in memory at a time, because entry logs are large.

Invariants: read-only, and no finding for bytes that were never confirmed (a torn end, a file that was being
reused). Printing and exit codes belong to `cli/bookie`, repair to `bookie/recovery`.
"""
