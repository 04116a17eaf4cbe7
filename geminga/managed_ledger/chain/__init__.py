"""A chain of ledgers as one endless log: appends, ledger rollover, reads across ledgers, the tail cache.

`Appender.append` passes an entry to the open ledger and to the tail cache; confirmations come back in groups
through `AddListener`. A full ledger is closed (`State.ROLLING`). Entries then queue, counted by
`AppendRoom`, until the next ledger's records are durable, and `open_ledger` continues. `LedgerReads` reads
from `TailCache` without an await, else from the bookie, never past the last confirmed entry. Read
`appender.py` first, then `ledger_chain.py` for positions and ordinals.

Rollover and retention decisions (`rollover.py`) follow Pulsar's rules and are pure. The states of a managed
ledger are a table (`state.py`), and any other transition is a bug. The cache holds the bytes objects of the
journal's queue, without copies. It evicts entries in strides: when all cursors near the tail have read them,
by age, or for lack of room. So a consumer far behind reads from the bookie and evicts nothing.

Invariants: an entry is invisible until it is confirmed. Entries of one topic keep the order of `append`
across a rollover. Every load gets a new ledger, so no entry id is used twice. The folder above and `cursor`
decide which ledgers a cursor still needs, and write all records.
"""
