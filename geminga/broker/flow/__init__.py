"""Keeps a fast side from overwhelming a slow one: outboxes, publish memory, rates, slices; and statistics.

On the way in, a connection reserves room in `PublishMemory` for what its producers send, and waits its turn
if there is none. A topic's `PublishLimit` decides when the next read is allowed. On the way out, every frame
goes through the connection's `Outbox`. An outbox is sent in as few writes as the socket takes, and becomes
unwritable when the peer does not read. Frames that were written in a turn of the loop are sent at its end
(`Outgoing`). `SendMemory` bounds the bytes in all outboxes, `ReadMemory` the reads for them,
`ClientMetadata` the names and metadata of clients. Read `outbox.py` first, then `publish_memory.py`.

Nothing is counted for each message: the journal knows its queue, `AppendRoom` the entries that wait for a
ledger, and large frames, which are received in turns, are counted. Rates are debts that time pays off: bytes
that were read are accepted, and the next read waits, because Pulsar's publish rate limiter works through
back-pressure and not through refusals. `Rate` and `Histogram` divide once for each interval, not for each
entry. `SwitchInterval` sets how soon a thread gets the interpreter beside a busy one.

Invariants: large frames get their turns in order of arrival and never take the share of small ones; receipts
and answers always fit into an outbox, only messages wait. `statistics.py` has Pulsar's field names for
`admin`. This is the bottom of the broker: it does not know topics and subscriptions.
"""
