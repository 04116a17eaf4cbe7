"""What the admin API needs of the broker, as protocols: `BrokerView` and its parts.

`BrokerView` (`broker.py`) only names the parts. Each class of routes gets those that it needs: `TopicsView`
(`topics.py`), `SubscriptionsView` (`subscriptions.py`), `StatisticsView` (`statistics.py`), `ProcessView`
(`process.py`: health, backup, memory), and `DelayedView` (`delayed.py`: summary, histogram, why, cancel,
reschedule, adopt). `broker/operator` has a module of the same name for each part, but for the process. The
docstrings here are the contract, with the errors that each call may raise.

Protocols between `admin` and `broker` keep HTTP out of the broker and topics, dispatchers and cursors out of
the routes. They are not a full wall: the registries of namespaces, policies and schemas, `Config`, and the
statistics structs are handed out as they are, because a copy of each would be the same again.

Must not be broken: plain methods answer from memory or from the metadata store and do not wait, async ones
may wait for a disk and are durable on return; every method with a topic raises `TopicNotFound`, with a
subscription `SubscriptionNotFound`. No implementation, no JSON and no HTTP status belong here.
"""
