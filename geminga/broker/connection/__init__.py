"""A client's connection: its socket, its session, and one handler for each command.

A `Reader` (`reader.py`) reads bytes, the session's decoder cuts them into commands, and `Session` serves
them, a turn at a time (`turns.py`). SEND, ACK and FLOW are served at once as plain calls; the function in
`handlers.py` serves every other command. A handler that has to wait for a disk or a topic returns an
awaitable, which gets a task of the connection's nursery. Read `Session` in `session.py` first, then
`handle_produce.py` and `handle_consume.py`.

The counterpart is Pulsar's ServerCnx, divided by command. Back-pressure is applied here and only in one way:
the socket is not read while publish memory is full, a rate is exceeded, the outbox is not writable, or too
many requests wait. That is why reading and serving are one loop and not two tasks with a queue between them.

Invariants: this is the boundary where a bug ends, with one connection or one request and never with the
broker. Errors go to the sender only. In each state (`ALLOWED_IN`) only the commands of the protocol are
accepted. Closing a producer or consumer cancels its opening. A handler translates between command and topic
and decides nothing about messages: rules belong to `topic`, `subscription` and `dispatch`, encoding to
`wire`.
"""
