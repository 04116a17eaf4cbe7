"""Topics: loading and deleting them, their producers, deduplication, backlog quotas, inactivity.

A producer's entry goes through `Publishing.publish`: deduplication judges it, the broker's stamp is put in
front, the managed ledger takes it with a `PublishContext`. `Publishing.on_confirmed` gets these back in
order: receipts first, then the delayed index is fed, then subscriptions are woken. A producer knows neither:
the session calls the topic that it belongs to. `Topics` is the registry: a topic is loaded once, by the first
request. `TopicCatalog` (`catalog.py`) knows the topics on disk. Read `Topic` in `topic.py` first, then
`publishing.py` and `topics.py`.

Pulsar's PersistentTopic and BrokerService. Producer access modes and the topic epoch follow PIP-68 and
PIP-179, deduplication PIP-6: sequence ids in the properties of the cursor `pulsar.dedup`, written before its
mark-delete position moves, so that a crash can at worst recall ids that are ahead of it and never lets a
duplicate pass.

Must not be broken: order of receipts is order of entries; with deduplication on, a refused entry disconnects
its producer, or the retry of it would be taken for a duplicate of a later one; a topic that is not used has
no task. Periodic checks (TTL, quotas, inactivity) run over all loaded topics in one task for each kind
(`rounds.py`). Delivery belongs to `subscription` and `dispatch`; `rooms.py` is what the whole broker is
given and makes nothing itself.
"""
