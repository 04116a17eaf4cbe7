"""Routes about one topic beside its creation, statistics, subscriptions and policies.

`messages.py` looks at stored messages: in a subscription's backlog, by message id, by time. `upkeep.py` has a
topic's properties, and what is done for its storage; `subscription_fields.py` what a subscription has beside
its cursor; `non_persistent.py` the lists of topics without storage, of which there are none. Read
`messages.py` first.

Each class gets the parts of the broker that it needs (`admin/view`) and decides nothing: which entry is the
third of a backlog, how far a scan goes and what a message's headers are is decided elsewhere. In Pulsar these
are methods of PersistentTopics.

Must not be broken: looking at messages changes nothing, not even for a subscription that does not exist,
which Pulsar creates when it is peeked at. Texts and status codes are those that `tests/e2e/messages` has
recorded.
"""
