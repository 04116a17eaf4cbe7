"""A running bookie: append path, write caches, read cache, flushes, garbage collection, full disks.

A write goes through `LedgerWriter.append` to a journal's queue. When its group is durable, `Bookie` adds the
entries to the `WriteCaches` of the ledger's directory and reports them. A full or old cache is swapped, and
`LedgerStorage.flush` writes the entry log, then index and journal marks. A read goes through `LedgerReader`:
active cache, flushing cache, `ReadCache`, then index and entry log with read-ahead. `GarbageCollector`
deletes logs without living ledgers, and compacts. Read `Bookie` in `bookie.py` first, then
`LedgerDirectory`.

Double write cache and read cache follow BookKeeper's SingleDirectoryDbLedgerStorage: one cache fills while
the other is flushed, so a slow flush does not stop the journal. Each ledger directory has its own caches,
logs, index and collection, so that a slow disk does not hold up another.

Invariants: the first failed write ends the bookie (`Lifeline`), all waiting writers get the error, and only
a new `open` finds out what survived. The append path has no await and no task. Files are used off the loop
only. Byte formats are in `journal`, `entry_logs` and `index`; ledger ids and their owners are in `metadata`.
"""
