"""A blocking client of any Pulsar broker, for Spark workers, which have no event loop.

A reader finds its broker with `owner_of` (`lookup.py`), subscribes without a durable cursor (`EntryStream`),
and takes frames from a `FrameBuffer`, which checks each MESSAGE's CRC-32C and does not copy the bytes. A
writer uses `Producer` (`producing.py`): many entries in flight, each confirmed by its receipt. `topics.py`
and `admin_http.py` look up topics, partitions and ledgers, and their ends. `TopicQuestions`
(`topic_questions.py`) does that for thousands of partitions, over one `SharedConnection` for each broker;
`OwningBrokers` (`owning_brokers.py`) keeps these. `KEPT` (`kept_connections.py`) keeps a reader's connections
for the next range. Read `connection.py` first.

This is a second shell around `geminga/client`, beside `cli/client`. That one needs trio and a task for each
receiver; a worker needs whole buffers of frames for numpy, and a deadline for each request. `geminga/client`
decides for both which requests to send, what an answer means and where a redirection leads.

Must not be broken: every request has a deadline, so that a task fails rather than hangs; after a lost
connection a producer resumes with the entries that were not confirmed, and may store one twice unless the
broker deduplicates; TLS and tokens have the names of the JVM client. A closed consumer means that the topic
has to be looked up again. Parsing entries belongs to `columns`, retries and ranges to `topics`.
"""
