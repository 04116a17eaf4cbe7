"""A running bookie: append path, write caches, read cache, flushes, garbage collection, full disks.

A write goes through `LedgerWriter.append` to a journal's queue; when its group is durable `Bookie` adds it to
the `WriteCaches` of the ledger's directory and reports it. A full or old cache is swapped, and
`LedgerStorage.flush` writes entry log, then index and journal mark. A read goes through `LedgerReader`:
active cache, flushing cache, `ReadCache`, then index and entry log with read-ahead. `GarbageCollector`
deletes ledgers without a metadata record and compacts. Read `Bookie` in `bookie.py` first, then
`LedgerDirectory`.

Double write cache and read cache are those of BookKeeper's SingleDirectoryDbLedgerStorage: one cache fills
while the other is flushed, so a slow flush does not stop the journal. Each ledger directory has caches, log,
index and collection of its own, so that one slow disk does not hold up another.

Must not be broken: the first failed write ends the bookie (`Lifeline`), all waiting writers are told, and
only a new `open` finds out what survived. The append path has no await and no task. Files are touched off the
loop only. Byte formats are in `journal`, `entry_logs` and `index`; ledger ids and their owners in `metadata`.
"""
