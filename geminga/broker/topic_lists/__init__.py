"""Names of topics by pattern, and the watches that tell clients of new and deleted ones.

A consumer by pattern asks twice: `CommandGetTopicsOfNamespace` with its pattern lists the topics of now, and
`CommandWatchTopicList` has the broker push what is added or deleted later (PIP-145). `pattern.py` is the pure
part: what a client's pattern matches. `TopicLists` in `watches.py` keeps one sorted list of names for each
namespace and pattern that is watched, whatever the number of its watches, and follows the metadata store.

Pulsar's TopicListService and TopicList. Patterns run in RE2, whose time is linear in the length of a name: a
pattern of a stranger must not hold the loop. What RE2 lacks (lookahead, back references) is left to the
client, which applies its pattern to the whole list as it does with old brokers.

Must not be broken: a watch whose namespace is quiet costs nothing, not even a timer; the hash that is sent is
that of the list with the change applied, or the client fetches the list again; the names that all watches
keep are bounded.
"""
