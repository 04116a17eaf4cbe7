"""Which consumer gets which entry, and when: the dispatchers of the four subscription types.

One round (`run_round`) of a Shared subscription asks how many entries the permits allow, takes redeliveries
first, then due delayed entries and new ones by turns, reads them (`read_new`, `LedgerReads.read_positions`),
leaves out what is acknowledged or held back (`admit`), lets a pure function choose consumers (`choice.py`,
`hash_ranges.py`) and queues MESSAGE frames (`send.py`). What finds no permits joins the `RedeliverySet`. Read
`dispatcher.py` first, then `shared.py`; `single.py` is Exclusive and Failover, `key_shared.py` Key_Shared.

Each subscription type is a subclass, as in Pulsar (PersistentDispatcherMultipleConsumers and its kin):
`Dispatcher`, `DelayingDispatcher`, `SharedDispatcher`, `KeySharedDispatcher`. Key_Shared follows PIP-34,
PIP-119, PIP-282 and PIP-379 slot for slot, so that keys go where they would go in Pulsar.

Must not be broken: an entry is in at most one place, pending at one consumer or to be redelivered
(`UnackedBooks`); of one key slot nothing overtakes; nothing is polled, every wake-up has a cause (`Sleeper`);
between reads other tasks get a turn. Choices have no clock, await or randomness. Moving the cursor belongs to
`subscription`, the index of delayed entries to `delays`.
"""
