"""A blocking client of any Pulsar broker, for Spark workers, where there is no event loop.

A reader finds its broker with `owner_of` (`lookup.py`), subscribes without a durable cursor (`EntryStream`),
and takes frames from a `FrameBuffer`, which checks each MESSAGE's CRC-32C and leaves the bytes where they
were received. A writer uses `Producer` (`producing.py`): many entries under way, each confirmed by its
receipt. `topics.py` and `admin_http.py` ask what topics, partitions and ledgers there are and where they end;
`TopicQuestions` (`topic_questions.py`) asks that of thousands of partitions over one `SharedConnection` for
each broker, which `OwningBrokers` (`owning_brokers.py`) keeps. `KEPT` (`kept_connections.py`) has a reader's
connections for the next range.
Read `connection.py` first.

A second shell around `geminga/client` beside `cli/client`, because that one needs trio and one task for each
receiver, while a worker wants whole buffers of frames for numpy, and deadlines on each request. What is
asked, what an answer means and where a redirection leads is decided in `geminga/client` for both.

Must not be broken: every request has a deadline, so that a task fails rather than hangs; a lost connection of
a producer resumes with what was not confirmed, and may store an entry twice unless the broker deduplicates;
TLS and tokens are taken as the JVM client names them. A closed consumer means "look the topic up again".
Taking entries apart belongs to `columns`, retries and ranges to `topics`.
"""
