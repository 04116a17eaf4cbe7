"""The purpose and topic of a ledger, written beside its entries, so that the files can be read without
metadata.

    name := purpose length u8 | purpose (UTF-8) | topic (UTF-8)

In a journal and in an entry log, a name is the body of a record with the ledger's id and `META_ENTRY_ID`,
like BookKeeper's meta entries. A name is not an entry: it has no row, no reader gets it, no sum counts it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

# The greatest of all ids, so that it sorts behind every entry of its ledger and no check for "next entry" can
# meet it by counting.
META_ENTRY_ID: Final = 2**64 - 1
"""No entry has this id."""
NAME_BYTES_MAX: Final = 2**16 - 1
"""The limit of an encoded name: its length is a u16 in an entry log's footer."""
_PURPOSE_BYTES_MAX: Final = 2**8 - 1


class LedgerName(NamedTuple):
    """`purpose` is that of the ledger's metadata record ("data", "cursor", "bucket"), "" if unknown. `topic`
    is the path of the topic's metadata node.
    """

    purpose: str
    topic: str


NAMELESS: Final = LedgerName("", "")
"""The name of a ledger of which nothing is known."""


def encode_name(name: LedgerName) -> bytes:
    """The body of a meta record. b"" for a name that cannot be encoded, because it is too long or no UTF-8: a
    bad name must not keep an entry from being written.
    """
    try:
        purpose, topic = name.purpose.encode(), name.topic.encode()
    # A lone surrogate can come from a topic's name in a client's request. The name is a convenience; the
    # entry that travels with it is not.
    except UnicodeEncodeError:
        return b""
    if len(purpose) > _PURPOSE_BYTES_MAX or 1 + len(purpose) + len(topic) > NAME_BYTES_MAX:
        return b""
    return bytes((len(purpose),)) + purpose + topic


def decode_name(body: bytes) -> LedgerName | None:
    """The name in these bytes; None if they hold no name, even with a right checksum."""
    if not body or 1 + body[0] > len(body):
        return None
    begin = 1 + body[0]
    try:
        return LedgerName(body[1:begin].decode(), body[begin:].decode())
    except UnicodeDecodeError:
        return None


def more_telling(one: LedgerName | None, other: LedgerName) -> LedgerName:
    """The more complete of two names of one ledger; the first if both are equally complete."""
    # A log of version 1 knows topics and no purposes, and a crash may have left a log with the topic alone.
    if one is None or (bool(other.topic), bool(other.purpose)) > (bool(one.topic), bool(one.purpose)):
        return other
    return one
