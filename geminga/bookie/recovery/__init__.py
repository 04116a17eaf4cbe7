"""From what any end of the process left on disk to a consistent bookie: journal replay, index rebuild.

A start meets, in order: `DirectoryReplay.check_index` (is the index older than the logs, or lost? then
`rebuild_index` fills it from entry logs), `JournalReplay.replay` from the earliest mark of any ledger
directory, each entry that is new going into a write cache, a flush of all caches, and a new journal file.
`RecoveryReport` says what was replayed, cut or lost. Read `Recovery` in `recovery.py` first.

The rule behind it: when recovery returns, all that will be served lies in synced entry logs and in the index,
so nothing a reader sees can vanish later. Serving from a replayed but unsynced cache would break that.
Replaying twice changes nothing, so a crash during recovery is just another crash; the crash campaign cuts the
power at every operation of it.

What was synced and is wrong now is damage and is named as lost; what is wrong with nothing behind it is a
torn end, was never promised, and is cut. Do not blur the two. Entries whose ledger was deleted stay deleted
unless the index is gone too; then `LedgerInventory.ledgers` is compared with the metadata. Deciding on topics
or cursors does not belong here.
"""
