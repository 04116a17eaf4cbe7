"""The write-ahead journal: one write and one sync for a group of entries, and reading it back after a crash.

An entry waits in the queue of `Journal`. The journal's thread takes the queue, and `JournalFiles.write` makes
one group of it and syncs. The thread notifies the event loop once for each group. `JournalSet` has one
journal for each directory of `journalDirectories`. At a start, `JournalInventory` decides which files have to
be read, `find_header` replaces a damaged header, and `JournalScan` distinguishes a torn end from damage. Read
`journal.py` first, then the top of `journal_format.py`.

Group commit works as in BookKeeper: the next group gathers during the sync of a group. So groups grow as the
disk gets slower, and a single entry does not wait. Entries without a waiting publisher share a sync in each
millisecond, if the loop reports the ends of its turns (`Journal.follow_turns`). A dedicated thread answers
faster than a thread pool call for each commit. Full files are reused and overwritten. So every group has the
file's id, and the `synced` offset, which proves that all bytes below it were on disk once.

Invariants: no group is written behind the remains of a crash, so a start always begins a new file. A file is
released only when all ledger directories have flushed past it. `bookie/recovery` decides where replayed
entries go; docs/formats/journal.md has the bytes.
"""
