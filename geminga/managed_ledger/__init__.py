"""A topic's storage: a chain of ledgers with appends at its end, and the cursors of its subscriptions.

`ManagedLedger.append` passes an entry to the open ledger (`chain/appender.py`), and the bookie confirms it.
Dispatchers read it through `chain/ledger_reads.py`, and consumers acknowledge it on a cursor (`cursor`). It
is deleted with its ledger once every durable cursor's mark-delete position has passed it (`Lifecycle.trim`).
Read `ManagedLedger` in `managed_ledger.py` first, then `lifecycle.py`: ledger rollover, trimming,
terminating and deleting, each under one lock.

The counterparts are Pulsar's ManagedLedgerImpl, ManagedCursorImpl and entry cache, divided so that append
and acknowledge are plain calls and only changes of the chain wait for a disk. `ChainRecord` is the only
writer of the topic's metadata record.

The order on disk must not be broken: storage first when something is created, metadata first when it is
deleted. Then no record ever names a ledger that is gone. A crash can only leave a ledger that no record
names, which `orphans.py` deletes at the next start. A managed ledger whose storage or records are not as
expected is fenced and has to be opened again. Message contents, permits and delays do not belong here: an
entry is opaque, and the delayed index's properties are known only by their prefix.
"""
