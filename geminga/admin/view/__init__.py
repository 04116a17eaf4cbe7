"""What the admin API needs of the broker, as two protocols: `BrokerView` and `DelayedView`.

Routes call `BrokerView` (`broker.py`): reads of topics, subscriptions and statistics, and the changes that an
operator may ask for. What concerns delayed messages (summary, histogram, why, cancel, reschedule, adopt) is
`DelayedView` (`delayed.py`). Both are implemented in `broker/operator`, by `View` and `DelayedOperator`. Read
`broker.py`; its docstrings are the contract, with the errors that each call may raise.

Protocols between `admin` and `broker` keep HTTP out of the broker and topics, dispatchers and cursors out of
the routes. They are not a full wall: the registries of namespaces, policies and schemas, `Config`, and the
statistics structs are handed out as they are, because a copy of each would be the same again.

Must not be broken: plain methods answer from memory or from the metadata store and do not wait, async ones
may wait for a disk and are durable on return; every method with a topic raises `TopicNotFound`, with a
subscription `SubscriptionNotFound`. No implementation, no JSON and no HTTP status belong here.
"""
