"""Names of topics by pattern, and the watches that notify clients of new and deleted topics.

A pattern consumer sends two requests: `CommandGetTopicsOfNamespace` with its pattern lists the current
topics, and `CommandWatchTopicList` has the broker push later additions and deletions (PIP-145). `pattern.py`
is the pure part: the names that a client's pattern matches. `TopicLists` in `watches.py` follows the
metadata store. It keeps one sorted list of names for each watched namespace and pattern, whatever the number
of watches.

The counterparts are Pulsar's TopicListService and TopicList. Patterns run in RE2, whose time is linear in
the length of a name, because an untrusted pattern must not hold the loop. Features that RE2 lacks
(lookahead, back references) are left to the client, which applies its pattern to the whole list as it does
with old brokers.

Invariants: a watch in a quiet namespace costs nothing, not even a timer. The hash that is sent is that of
the list with the change applied, or the client fetches the list again. The names that all watches keep are
bounded.
"""
