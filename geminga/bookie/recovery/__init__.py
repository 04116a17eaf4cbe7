"""Turns the files that any end of the process left into a consistent bookie: journal replay, index rebuild.

A start runs these steps in order. `DirectoryReplay.check_index` decides whether the index is lost or older
than the logs; if so, `rebuild_index` fills it from entry logs. `JournalReplay.replay` reads the journals
from the earliest mark of any ledger directory, and puts each new entry into a write cache. All caches are
flushed, and a new journal file begins. `RecoveryReport` counts what was replayed, cut or lost. Read
`Recovery` in `recovery.py` first.

The rule: when recovery returns, all entries that the bookie will serve are in synced entry logs and in the
index. So nothing that a reader sees can vanish later; serving from a replayed but unsynced cache would break
that. A second replay changes nothing, so a crash during recovery is like any other crash. The crash campaign
cuts the power at every operation of a recovery.

An error in synced bytes is damage, and its entries are recorded as lost. An error with nothing behind it is
a torn end, which was never confirmed, and is cut off. Do not blur the two. Entries of a deleted ledger stay
deleted unless the index is gone, too; then the start compares `LedgerInventory.ledgers` with the metadata.
Decisions about topics or cursors do not belong here.
"""
