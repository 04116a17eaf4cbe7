"""The parts of an entry's metadata that a broker acts on."""

from __future__ import annotations

import binascii

import msgspec

from geminga.wire import pulsar_pb2 as pb
from geminga.wire.commands import signed
from geminga.wire.stored_entry import metadata_range, parse_metadata, raw_text


class Peek(msgspec.Struct, frozen=True, gc=False):
    """The fields of one entry's metadata that the broker needs for each message.

    Texts are bytes as received, valid UTF-8 or not. Numbers are signed, as in clients, but transaction ids
    are unsigned. The keys of a batch are those of its first message.
    """

    body: bytes
    """The whole entry, including its stamp."""
    publish_time_ms: int
    partition_key_utf8: bytes | None = None
    """As received, so base64 if `partition_key_b64`."""
    ordering_key: bytes | None = None
    deliver_at_ms: int = 0
    """0: at once."""
    num_messages_in_batch: int = 1
    is_batch: bool = False
    """Whether the payload is in the batch format; a batch may hold just one message."""
    compression: int = 0
    uncompressed_bytes: int = 0
    event_time_ms: int = 0
    highest_sequence_id: int = 0
    marker_type: int | None = None
    txnid_most_bits: int | None = None
    txnid_least_bits: int | None = None
    chunk_id: int = -1
    """-1: not a chunk."""
    num_chunks: int = 0
    partition_key_b64: bool = False
    null_value: bool = False

    def __repr__(self) -> str:
        known = {name: getattr(self, name) for name in self.__struct_fields__ if name != "body"}
        return f"Peek({len(self.body)} bytes, {known})"

    @property
    def total_bytes(self) -> int:
        return len(self.body)

    @property
    def metadata(self) -> pb.MessageMetadata:
        """All of the metadata. Parsed at each call, and so are the three properties below."""
        return parse_metadata(self.body, *metadata_range(self.body))

    @property
    def producer_name_utf8(self) -> bytes:
        return raw_text(self.metadata.producer_name)

    @property
    def producer_name(self) -> str:
        return self.producer_name_utf8.decode(errors="replace")

    @property
    def sequence_id(self) -> int:
        return signed(self.metadata.sequence_id)

    @property
    def partition_key(self) -> bytes | None:
        """The key itself; None if there is none, or if it is invalid base64."""
        key = self.partition_key_utf8
        if key is None or not self.partition_key_b64:
            return key
        try:
            return binascii.a2b_base64(key + b"=" * (-len(key) % 4), strict_mode=True)
        except binascii.Error:
            return None

    @property
    def is_chunk(self) -> bool:
        return self.chunk_id >= 0
