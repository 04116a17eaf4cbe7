"""Topics: loading and deleting them, their producers, deduplication, backlog quotas, inactivity.

`Publishing.publish_run` takes the entries of a producer that came together: the broker's stamp is prepended
to each, and the managed ledger takes them with a `PublishRun`. `Publishing.publish` takes an entry that needs
a look of its own, for instance by deduplication. `Publishing.on_confirmed` gets the runs back in order. It
writes receipts first, then feeds the delayed index, then wakes subscriptions. A producer knows neither: the
session calls the topic that the producer belongs to. `Topics` is the registry: the first request for a topic
loads it, once. `TopicCatalog` (`catalog.py`) knows the topics on disk. Read `Topic` in `topic.py` first, then
`publishing.py` and `topics.py`.

The counterparts are Pulsar's PersistentTopic and BrokerService. Producer access modes and the topic epoch
follow PIP-68 and PIP-179. Deduplication follows PIP-6: sequence ids are in the properties of the cursor
`pulsar.dedup`. They are written before its mark-delete position moves. So after a crash the ids may be ahead
of the position, which never lets a duplicate pass.

Invariants: the order of receipts is the order of entries. With deduplication on, a refused entry disconnects
its producer, or its retry would count as a duplicate of a later entry. An unused topic has no task. Periodic
checks (TTL, quotas, inactivity) run over all loaded topics, in one task for each kind (`rounds.py`).
Delivery belongs to `subscription` and `dispatch`. `rooms.py` is passed to the whole broker and creates
nothing itself.
"""
