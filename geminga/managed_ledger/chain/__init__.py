"""A chain of ledgers as one endless log: appending, ledger rollover, reading across ledgers, the tail cache.

`Appender.append` hands an entry to the open ledger and to the tail cache; confirmations come back in groups
through `AddListener`. A full ledger is left (`State.ROLLING`), entries queue in `AppendRoom`'s count until
the next ledger's records are durable, and `open_ledger` goes on. `LedgerReads` serves from `TailCache`
without an await, else from the bookie, never past the last confirmed entry. Read `appender.py` first, then
`ledger_chain.py` for positions and ordinals.

Rollover and retention decisions (`rollover.py`) follow Pulsar's rules and are pure; the states of a managed
ledger are a table (`state.py`), and what is not in the table is a bug. The cache holds the same bytes objects
that the journal's queue has: no copies. It evicts in strides, when all cursors near the tail have read an
entry, by age, or for want of room, so that a consumer far behind reads from the bookie and disturbs nothing.

Must not be broken: an entry is invisible until it is confirmed; entries of one topic keep the order of
`append` across a rollover; a new ledger for every load, so no entry id is used twice. Which ledgers a cursor
still needs, and all writing of records, is in the folder above and in `cursor`.
"""
