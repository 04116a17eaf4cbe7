"""The bookie makes entries of ledgers durable and reads them back. One process, local disks, no replication.

An entry passes `LedgerWriter.append` and the journal's queue (`running`, `journal`), one call that writes and
syncs its group, and the active write cache (`running/write_caches.py`). A flush writes it to an
entry log (`entry_logs`) and its row to the index (`index`). A read looks into the two write caches and the
read cache, and then goes through index and entry log. A start goes through `recovery`. Read `Bookie` in
`running/bookie.py` first.

The design is that of BookKeeper's DbLedgerStorage: journal, double write cache, entry logs shared by all
ledgers, locations in RocksDB, garbage collection with minor and major compaction. It turns a broker's writes
to thousands of ledgers into sequential writes. Differences from BookKeeper: no quorum, an index row covers a
run of entries instead of one, and an entry can be read only once its group is synced.

Invariants: nothing is reported durable before the sync has returned. After a failed sync nothing is retried
and nothing confirmed. The entry log is synced before the index, and the index before the journal is
released. The packages import in one direction: records, journal, index, entry_logs, recovery, running,
offline. Topics, cursors and the protocol do not belong here: a body is opaque bytes.
"""
