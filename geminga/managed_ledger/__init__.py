"""A topic's storage: a chain of ledgers written at one end, and the cursors of its subscriptions.

An entry goes through `ManagedLedger.append` to the open ledger (`chain/appender.py`), is confirmed by the
bookie, is read by dispatchers through `chain/ledger_reads.py`, is acknowledged on a cursor (`cursor`), and
goes with its ledger once every durable cursor's mark-delete position has passed it (`Lifecycle.trim`). Read
`ManagedLedger` in `managed_ledger.py` first, then `lifecycle.py`: ledger rollover, trimming, terminating and
deleting, each under one lock.

This is Pulsar's ManagedLedgerImpl, ManagedCursorImpl and entry cache, split so that append and acknowledge
are plain calls and only changes of the chain wait for a disk. `ChainRecord` is the one writer of the topic's
metadata record.

What must not be broken is the order on disk: storage first when something is made, metadata first when it is
deleted. Then no record ever names a ledger that is gone; a crash can only leave a ledger that no record
names, which `orphans.py` sweeps at the next start. A managed ledger whose storage or records are not as
expected is fenced and has to be opened again. Message contents, permits and delays do not belong here: an
entry is opaque, and the delayed index's properties are known only by their prefix.
"""
