"""The write-ahead journal: one write and one sync for a group of entries, and reading it after a crash.

An entry waits in the queue of `Journal`; the journal's thread takes what is queued, `JournalFiles.write`
makes one group of it and syncs, and the event loop is told once for each group. `JournalSet` has one journal
for each directory of `journalDirectories`. At a start `JournalInventory` says which files have to be read,
`find_header` makes up for a damaged header, and `JournalScan` tells a torn end from damage. Read `journal.py`
first, then the top of `journal_format.py`.

Group commit as in BookKeeper: while one group is synced the next one gathers, so groups grow as the disk gets
slower, and an entry that comes alone does not wait. Few entries without a waiting publisher share a sync in a
millisecond, where the loop says when its turns end (`Journal.follow_turns`). A dedicated thread answers
faster than a thread pool call for each commit. Full files are reused (written over), hence the file id in
every group and the `synced` offset that proves what lies below it was once on disk.

Must not be broken: no group is written behind what a crash left, a start always begins a new file; a file is
released only when all ledger directories have flushed past it. What entries are replayed into is decided in
`bookie/recovery`; docs/formats/journal.md has the bytes.
"""
