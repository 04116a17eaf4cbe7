"""Every fixed bound in the product, and how the bounds relate. What a user may change is in
`config/config.py`.

A bound that is broken by a peer is a `PeerError`; one that is broken by us is an assertion.
"""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB

# wire: Pulsar's frame is u32 total size, then u32 command size, then the command, then headers and payload.
MESSAGE_BYTES_MAX = 5 * MIB
"""Largest message (Pulsar `maxMessageSize` default): metadata and payload of one entry."""
FRAME_PADDING_BYTES = 10 * KIB
"""What a frame may hold beside the message (Pulsar's `MESSAGE_SIZE_FRAME_PADDING`)."""
FRAME_BYTES_MAX = MESSAGE_BYTES_MAX + FRAME_PADDING_BYTES
RECEIVE_BYTES_MIN = 4 * KIB
"""How much one receive call takes from a socket where commands are small and many..."""
RECEIVE_BYTES_FIRST = 16 * KIB
"""...from one that has just connected..."""
RECEIVE_BYTES = 256 * KIB
"""...at most, where a sender keeps that full..."""
RECEIVE_BYTES_TIGHT = 64 * KIB
"""...and while the memory for publishers is more than half used, unless connections are few."""
PROTOCOL_VERSION = 20
"""Highest version of the binary protocol that this broker speaks."""

# connections
HANDSHAKE_SECONDS = 10
OUTBOX_BYTES_HIGH = 4 * MIB
"""Above this a connection's unsent bytes stop dispatch to its consumers..."""
OUTBOX_BYTES_LOW = 1 * MIB
"""...until they have fallen below this."""
PRODUCERS_PER_CONNECTION_MAX = 10_000
CONSUMERS_PER_CONNECTION_MAX = 10_000
TOPIC_LIST_WATCHES_PER_CONNECTION_MAX = 1000
"""Consumers by pattern of one client share a connection; each has a watch."""
CLIENT_METADATA_BYTES_MAX = 64 * KIB
"""Name and metadata of one producer or consumer."""
CLIENT_VERSION_CHARACTERS_MAX = 256
"""What is kept of how a client calls itself."""

# bookie
ENTRY_BYTES_MAX = FRAME_BYTES_MAX + KIB
"""Largest entry on disk: a whole message and the broker's own stamp before it."""
JOURNAL_GROUP_BYTES_MAX = 16 * MIB
JOURNAL_GROUP_ENTRIES_MAX = 16_384

# broker
PERMITS_MAX = 2**31 - 1
NAME_BYTES_MAX = 8 * KIB
DUE_MS_MAX = 253_402_300_799_999
"""The latest due time that a message can be given by hand: the end of the year 9999, as the calendars of
Python and of most else end there. A producer may have sent a later one."""
PRECISION_MAX_MS = 86_400_000
"""The widest that a subscription may ask for: a day."""

assert OUTBOX_BYTES_LOW < OUTBOX_BYTES_HIGH
assert FRAME_BYTES_MAX < 2**31
assert ENTRY_BYTES_MAX > FRAME_BYTES_MAX, "the broker's stamp must fit beside the largest message"
assert JOURNAL_GROUP_BYTES_MAX >= ENTRY_BYTES_MAX, "the largest entry must fit into one journal group"
