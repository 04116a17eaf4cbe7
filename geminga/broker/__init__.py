"""The broker: connections, topics, subscriptions, and which consumer gets which entry when.

A published message meets `connection` (socket, session, producer), `topic` (deduplication, the broker's
stamp, the managed ledger), and on confirmation its receipt in `flow/outbox.py`. Then it wakes the topic's
subscriptions: `subscription` holds the cursor, `dispatch` reads and chooses a consumer, `delays` holds back
what is not due. `policies` and `schemas` say what a topic allows; `operator` is the administration's side.
Read `Topic` in `topic/topic.py` first, then `Subscription`, then `Dispatcher`.

The corresponding classes in Pulsar are ServerCnx, PersistentTopic, PersistentSubscription and the
PersistentDispatcher family. The packages import downward only, in the order of ARCHITECTURE.md's table, with
flow and policies at the bottom and operator and connection at the top.

Must not be broken: a single message costs plain calls, no task and no await; a receipt leaves only after the
sync; no subscription skips an unacknowledged entry. All state belongs to the event loop. A `PeerError` is
answered to its sender alone. Bytes of the protocol belong to `wire`, files to the rooms below, HTTP to
`admin`; what every part is given (`Rooms`) is handed down and never opened here.
"""
