"""A subscription: its cursor, its consumers, the one dispatcher that serves them, and expiry.

New entries go out by a plain call (`Subscription.entries_available`), or wake `Subscription.run`, the
subscription's one task, which has the dispatcher run a round. Its parts know each other in one direction:
`Consumers` has the dispatcher and those attached; `Acks` takes every acknowledgement as a plain call, settles
the dispatcher's pending entries and moves the cursor's mark-delete position; `DueBacklog` (policies that
count from due times) and `Expiry` (TTL, `expire-messages`) decide what to let go and hand it to `Acks`.
`Subscription` makes the parts and owns the beginning, the seek and the end. Read `subscription.py` first,
then `acks.py` for batches and cumulative acknowledgements. `statistics.py` looks at all of it from above.

Pulsar's PersistentSubscription and PersistentMessageExpiryMonitor. The dispatcher is chosen by the type of
the first consumer and replaced only when a first consumer of another type comes; everything but the run loop
is synchronous, so state never changes in the middle of a call.

Must not be broken: the dispatcher is told before the cursor moves, so that an expired entry is not sent again
from the pending ones; expiry acknowledges and deletes nothing; a seek disconnects consumers first and is
durable before they return. `DueBacklog` reads each entry once, to learn its due time, and leaves the rest to
the delayed index. Which consumer gets an entry belongs to `dispatch`, what waits for its time to `delays`,
durability to `managed_ledger/cursor`.
"""
