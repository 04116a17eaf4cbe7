"""Where each flushed entry lies: the index of one ledger directory, in RocksDB.

At a flush `LedgerIndex.flushed` records the rows of the new entry log records together with the journal mark,
in one synced batch. A read asks `LedgerIndex.find` for the row that covers an entry. Fencing and deleting a
ledger are states in here; "deleted" outlives the rows until no journal that a replay reads can hold entries
of the ledger. Read `LedgerIndex` in `ledger_index.py` first, then the table at the top of `index_format.py`.

BookKeeper keeps an EntryLocationIndex with a row for each entry; here a row covers a run of consecutive
entries whose records lie side by side, because a flush sorts by ledger and so most rows are long. The journal
mark is in the same batch as the rows: separate writes could skip the replay of entries that no row names.

Everything but fences and deletions can be rebuilt from entry logs and journal, so damage is no reason to
refuse a start: `IndexDatabase` puts a damaged database aside, keeps the states that can still be read, and a
new one is filled by `bookie/recovery`. Rows of a ledger never overlap. Entry bodies and file access do not
belong here; RocksDB itself is reached only through `storage/key_value.py`. docs/formats/index.md has the
bytes.
"""
