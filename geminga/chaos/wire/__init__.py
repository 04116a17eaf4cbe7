"""Faults on the wire: between the sockets of clients and the code that serves them.

With `--chaos`, the composition root has each accepted socket wrapped (`WireFaults.faulty` in
`faulty_socket.py`). The wrapped socket has the methods of the real one as its attributes until the place
`wire` gets a rule. Then a `Relay` (`relay.py`) takes over the socket. It copies bytes between the client and
a pair of sockets, whose other end the broker reads and writes from then on, and applies the rules to each
frame. A relay stays until its connection ends, also after the last rule has ended.

A request that a rule answers with an error (`answers.py`) is not passed on; its answer leaves in the other
direction, between two frames of the broker.

`frames.py` cuts the bytes of one direction into frames and reads their commands' names, without I/O. A relay
may begin in the middle of a frame. It passes on what it cannot read until a read begins with a frame.

Bounded: a relay holds at most `HELD_BYTES_MAX` for each direction, and reads no more until they have left.
"""
