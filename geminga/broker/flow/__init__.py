"""What keeps a fast side from drowning a slow one: outboxes, publish memory, rates, slices; and statistics.

On the way in a connection asks `PublishMemory` whether there is room for what its producers send and waits
its turn if not, and a topic's `PublishLimit` says when the next read is allowed. On the way out every frame
goes through the connection's `Outbox`, which leaves in as few writes as the socket takes and becomes
unwritable when the peer does not read; what was written in a turn of the loop leaves at its end (`Outgoing`).
`SendMemory` bounds what all outboxes hold, `ReadMemory` what is being
read for them, `ClientMetadata` what clients say of themselves. Read `outbox.py` first, then
`publish_memory.py`.

Nothing is counted for each message: the journal knows its queue, `AppendRoom` what waits for a ledger, and
large frames are counted, which are received in turns. Rates are debts that time pays off: what was read is
accepted, the next read waits, as Pulsar's publish rate limiter works through back-pressure rather than
refusals. `Rate` and `Histogram` divide once for each interval, not for each entry. `SwitchInterval` says how
soon a thread is heard beside a busy one.

Must not be broken: large frames get their turns in order of arrival and never take the share of small ones;
receipts and answers always fit into an outbox, only messages are held. `statistics.py` carries Pulsar's field
names for `admin`. The bottom of the broker: topics and subscriptions are not known here.
"""
