"""The broker: connections, topics, subscriptions, and which consumer gets which entry when.

A published message passes `connection` (socket, session, producer) and `topic` (deduplication, the broker's
stamp, the managed ledger). When it is confirmed, its receipt goes to `flow/outbox.py`, and the topic's
subscriptions wake: `subscription` holds the cursor, `dispatch` reads and chooses a consumer, `delays` keeps
messages that are not due. `policies` and `schemas` define what a topic allows; `operator` is the
administration's side. Read `Topic` in `topic/topic.py` first, then `Subscription`, then `Dispatcher`.

The corresponding classes in Pulsar are ServerCnx, PersistentTopic, PersistentSubscription and the
PersistentDispatcher family. The packages import downward only, in the order of ARCHITECTURE.md's table, with
flow and policies at the bottom and operator and connection at the top.

Invariants: a single message costs plain calls, no task and no await; a receipt leaves only after the sync;
no subscription skips an unacknowledged entry. All state belongs to the event loop. A `PeerError` is answered
to its sender alone. Bytes of the protocol belong to `wire`, files to the rooms below, HTTP to `admin`.
`Rooms` is passed down to every part and never opened here.
"""
