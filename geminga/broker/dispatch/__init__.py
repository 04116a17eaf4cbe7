"""Which consumer gets which entry, and when: one dispatcher loop, and a chooser for each subscription type.

One round (`Dispatcher.run_round`) asks how many entries the permits allow. It sends what waits for
redelivery first (`Replay`), then due delayed entries and new ones by turns: `EntryReader` and, where delivery
times count, `DelayedReads` read them and leave out what is acknowledged or held back; the chooser shares the
batch between consumers; send.py queues MESSAGE frames. What finds no permits joins the `RedeliverySet`, or is
read again where nothing is kept. What was just published goes without a round if it is all there is to send
(`Dispatcher.send_published`). Read dispatcher.py first, then chooser.py.

A dispatcher is put together by `types.new_dispatcher`. Exclusive and Failover (single.py) are Pulsar's
PersistentDispatcherSingleActiveConsumer; Shared (shared.py) is its PersistentDispatcherMultipleConsumers with
`Replay` and `DelayedReads`; Key_Shared (key_shared.py) its PersistentStickyKeyDispatcherMultipleConsumers. It
follows PIP-34, PIP-119, PIP-282 and PIP-379 slot for slot, so that keys go where they would go in Pulsar.

Must not be broken: an entry is in at most one place, pending at one consumer or to be redelivered
(`UnackedBooks`); of one key slot nothing overtakes; nothing is polled, every wake-up has a cause (`Sleeper`);
between reads other tasks get a turn. Choices have no clock, await or randomness. Moving the cursor's
mark-delete belongs to `subscription`, the index of delayed entries to `delays`.
"""
