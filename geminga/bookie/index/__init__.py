"""Maps each flushed entry to its record: the index of one ledger directory, in RocksDB.

At a flush, `LedgerIndex.flushed` writes the rows of the new records together with the journal marks, in one
synced batch. A read uses `LedgerIndex.find` to get the row that covers an entry. The index also stores the
states "fenced" and "deleted" of ledgers. "Deleted" outlives the rows until no journal that a replay reads
can have entries of the ledger. Read `LedgerIndex` in `ledger_index.py` first, then the table at the top of
`index_format.py`.

BookKeeper keeps an EntryLocationIndex with a row for each entry. Here a row covers a run of consecutive
entries whose records are contiguous. A flush sorts by ledger, so most rows are long. The marks are in the
same batch as the rows, because separate writes could skip the replay of entries that no row names.

Everything but fences and deletions can be rebuilt from entry logs and journals, so damage is no reason to
refuse a start. `IndexDatabase` renames a damaged database and keeps the states that can still be read;
`bookie/recovery` fills a new database. Rows of a ledger never overlap. Entry bodies and file access do not
belong here; `storage/key_value.py` is the only way to RocksDB. docs/formats/index.md has the bytes.
"""
