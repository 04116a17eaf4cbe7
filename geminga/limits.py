"""Every fixed bound in the product, and how the bounds relate. `config/config.py` has the bounds that a user
may change.

If a peer exceeds a bound, that is a `PeerError`; if Geminga does, an assertion fails.
"""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB

# wire: Pulsar's frame is u32 total size, then u32 command size, then the command, then headers and payload.
MESSAGE_BYTES_MAX = 5 * MIB
"""Largest message (Pulsar `maxMessageSize` default): metadata and payload of one entry."""
FRAME_PADDING_BYTES = 10 * KIB
"""The bytes of a frame beside the message (Pulsar's `MESSAGE_SIZE_FRAME_PADDING`)."""
FRAME_BYTES_MAX = MESSAGE_BYTES_MAX + FRAME_PADDING_BYTES
RECEIVE_BYTES_MIN = 4 * KIB
"""The size of a receive call for a connection whose commands are small and many."""
RECEIVE_BYTES_FIRST = 16 * KIB
"""The size of a receive call for a new connection."""
RECEIVE_BYTES = 256 * KIB
"""The largest receive call, for a sender that keeps it full."""
RECEIVE_BYTES_TIGHT = 64 * KIB
"""The size of a receive call while more than half of the publish memory is used, unless
connections are few.
"""
PROTOCOL_VERSION = 20
"""Highest version of the binary protocol that this broker speaks."""

# connections
HANDSHAKE_SECONDS = 10
OUTBOX_BYTES_HIGH = 4 * MIB
"""Above this, a connection's unsent bytes stop dispatch to its consumers."""
OUTBOX_BYTES_LOW = 1 * MIB
"""Below this, dispatch to the consumers of a connection continues."""
PRODUCERS_PER_CONNECTION_MAX = 10_000
CONSUMERS_PER_CONNECTION_MAX = 10_000
TOPIC_LIST_WATCHES_PER_CONNECTION_MAX = 1000
"""The pattern consumers of one client share a connection; each has a watch."""
CLIENT_METADATA_BYTES_MAX = 64 * KIB
"""The limit of name and metadata of one producer or consumer."""
CLIENT_VERSION_CHARACTERS_MAX = 256
"""The stored length of a client's version text."""

# bookie
ENTRY_BYTES_MAX = FRAME_BYTES_MAX + KIB
"""Largest entry on disk: a whole message and the broker's own stamp before it."""
JOURNAL_GROUP_BYTES_MAX = 16 * MIB
JOURNAL_GROUP_ENTRIES_MAX = 16_384

# broker
PERMITS_MAX = 2**31 - 1
NAME_BYTES_MAX = 8 * KIB
DUE_MS_MAX = 253_402_300_799_999
"""The latest due time that can be set by hand: the end of the year 9999, where the calendars of Python and
of most other programs end. A producer may have sent a later one.
"""
PRECISION_MAX_MS = 86_400_000
"""The coarsest precision of a subscription: a day."""

assert OUTBOX_BYTES_LOW < OUTBOX_BYTES_HIGH
assert FRAME_BYTES_MAX < 2**31
assert ENTRY_BYTES_MAX > FRAME_BYTES_MAX, "the broker's stamp must fit beside the largest message"
assert JOURNAL_GROUP_BYTES_MAX >= ENTRY_BYTES_MAX, "the largest entry must fit into one journal group"
