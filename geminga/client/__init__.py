"""What a Pulsar client says and hears, as pure code: bytes and commands, no socket, no event loop, no clock.

Two shells do the I/O: `cli/client` with trio, `pipeline/client` with blocking sockets. For each connection
they have a `Session` (`session.py`), which makes CONNECT and the requests, gives each request its id, and
tells of each command that arrives whether it answers one, and whether the answer is a refusal. A `Lookup`
(`lookup.py`) follows redirections until a broker says that it serves the topic. `admin.py` has the paths of
the admin API and reads the reason out of its errors. Read `session.py` first.

The shells differ in what they wait with and in their errors, which belong to their users: a `Refusal` is
data here, and each shell raises an error of its own for it. Deliveries, receipts and permits stay in the
shells, as one takes messages one by one and the other whole buffers for numpy.

Must not be broken: nothing here waits, and nothing here fails over what a broker answers.
"""
