"""`geminga bookie`: the files of a stopped broker, listed, dumped, verified, and its index rebuilt.

`run` in `bookie.py` finds the command; each opens a `StoppedBookie` (`directory.py`), which takes the data
directory's lock, so that no broker runs meanwhile. `lists.py` has ledgers, entry-logs and journals,
`dumps.py` dump-log, dump-journal and entry, `repair.py` verify and rebuild-index, `unrecorded.py` ledgers
that the metadata does not know, `losses.py` compares what metadata promises of closed ledgers with what is
there. Read `directory.py` first.

The counterpart of BookKeeper's `bookkeeper shell`, as a look that needs neither a broker nor an intact index.
The reading itself is done in `bookie/offline`, which has no knowledge of flags or output.

Must not be broken: all but rebuild-index and unrecorded (with set-aside, restore, delete) write nothing
except the process id in the lock's file; rebuild-index puts the old index aside, takes over fences, and
deletions that the metadata does not deny, and leaves the rest to an ordinary start of the bookie; unrecorded
keeps the metadata as it was beside the new one; what is damaged is named by file and offset, exit code 1. A
directory that is in use, or not one of Geminga's, is exit code 4. Rescuing entries out of broken directories
in bulk is `geminga pipeline rescue`.
"""
