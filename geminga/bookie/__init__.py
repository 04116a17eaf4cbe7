"""The bookie: entries of ledgers made durable, and read back. One process, local disks, no replication.

An entry meets, in order: `LedgerWriter.append` and the journal's queue (`running`, `journal`), one write and
one fdatasync for its group, the active write cache (`running/write_caches.py`), then at a flush an entry log
(`entry_logs`) and a row of the index (`index`). A read looks into the two write caches, the read cache, then
index and entry log. A start goes through `recovery`. Read `Bookie` in `running/bookie.py` first.

The shape is BookKeeper's DbLedgerStorage: journal, double write cache, entry logs shared by all ledgers,
locations in RocksDB, garbage collection with minor and major compaction. It was kept because a broker's
writes to thousands of ledgers become sequential writes that way. Differs from BookKeeper: no quorum, an index
row covers a run of entries rather than one, and an entry can be read only once its group is synced.

Must not be broken: nothing is reported durable before the sync returned; after a failed sync nothing is
retried and nothing confirmed; entry log synced before index, index before the journal is released. The
packages import in one direction: records, journal, index, entry_logs, recovery, running, offline. Topics,
cursors and the protocol do not belong here: a body is opaque bytes.
"""
