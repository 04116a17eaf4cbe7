"""The commands of a Pulsar client as pure code: bytes and commands, no socket, no event loop, no clock.

Two shells do the I/O: `cli/client` with trio, `pipeline/client` with blocking sockets. Each connection has a
`Session` (`session.py`). It makes CONNECT and the requests, assigns request ids, and decides whether a
received command answers a request, and whether the answer is a refusal. A `Lookup` (`lookup.py`) follows
redirections until a broker serves the topic. `admin.py` has the paths of the admin API and extracts the
reason from its errors. Read `session.py` first.

The shells differ in how they wait and in their errors, which belong to their users: a `Refusal` is data
here, and each shell raises an error of its own for it. Deliveries, receipts and permits stay in the shells,
because one shell takes messages one by one and the other whole buffers for numpy.

Invariants: nothing here waits, and no answer of a broker makes this code fail.
"""
