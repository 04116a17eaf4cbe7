"""A client's connection: its socket, its session, and one handler for each command.

Bytes are read by a `Reader` (`reader.py`), cut into commands by the session's decoder and served, a turn at a
time (`turns.py`), by `Session`: SEND, ACK and FLOW at once as plain calls, every other command by the
function that `handlers.py` names. A handler that has to wait for a disk or a topic returns an awaitable,
which gets a task of the connection's nursery. Read `Session` in `session.py` first, then `handle_produce.py`
and `handle_consume.py`.

Pulsar's ServerCnx, divided by command. Back-pressure is here and is only this: the socket is not read while
publish memory is full, a rate is exceeded, the outbox is not writable, or too many requests wait. That is why
reading and serving are one loop and not two tasks with a queue between.

Must not be broken: this is the boundary where a bug ends, with one connection or one request and never the
broker; errors go to the sender only; in each state (`ALLOWED_IN`) only the commands of the protocol are
accepted; a close of a producer or consumer cancels its opening. A handler translates between command and
topic and decides nothing about messages: rules belong to `topic`, `subscription` and `dispatch`, encoding to
`wire`.
"""
