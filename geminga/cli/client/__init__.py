"""A small asynchronous client of any Pulsar broker, for `produce`, `consume` and `perf`.

`open_client` in `client.py` gives a `Client` for a block; `Client` looks a topic up, opens a `Connection` to
the broker that serves it, and opens a `Producer` (many entries under way, each confirmed by its receipt) or a
`Consumer` (a queue of deliveries, permits given back as they leave it) there, one for each partition.
`Connection` sends and receives for a `Session` of `geminga/client`, which pairs requests with answers, and
hands deliveries to their receivers. Read `client.py`, then `connection.py`.

It exists because a command line must work without the official client, which is a C++ extension, and because
`perf` has to measure the broker and not the queues and threads of a client library. It speaks `wire`, as the
broker does, so one set of encoders and decoders serves both sides. `errors.py` imports no socket.

Must not be broken: it does not reconnect; a broker that goes away is told to the user and ends the command.
It works with the real Pulsar, which the end-to-end tests use to compare. `message.py` takes deliveries apart:
batches, compression, chunks; what is encrypted is shown as it is. Spark workers have no event loop and use
the blocking client in `pipeline/client`.
"""
