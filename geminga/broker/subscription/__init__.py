"""A subscription: its cursor, its consumers, the one dispatcher that serves them, and expiry.

New entries wake `Subscription.run`, the subscription's one task, which has the dispatcher run a round.
Acknowledgements come in as plain calls (`acknowledge`, `acknowledge_cumulative`, `acknowledge_command`),
settle the dispatcher's pending entries and move the cursor's mark-delete position. TTL and `expire-messages`
go through `Expiry`, policies that count from due times through `DueBacklog`. Read `Subscription` in
`subscription.py` first, then `acks.py` for batches and cumulative acknowledgements.

Pulsar's PersistentSubscription and PersistentMessageExpiryMonitor. The dispatcher is chosen by the type of
the first consumer and replaced only when a first consumer of another type comes; everything but the run loop
is synchronous, so state never changes in the middle of a call.

Must not be broken: the dispatcher is told before the cursor moves, so that an expired entry is not sent again
from the pending ones; expiry acknowledges and deletes nothing; a seek disconnects consumers first and is
durable before they return. `DueBacklog` reads each entry once, to learn its due time, and leaves the rest to
the delayed index. Which consumer gets an entry belongs to `dispatch`, what waits for its time to `delays`,
durability to `managed_ledger/cursor`.
"""
