"""Encrypted entries as they were before: the payload of a whole entry is encrypted, its metadata are not.

A producer encrypts a data key with the public key of each reader (RSA with OAEP) and puts it into the
metadata, with the nonce. The data key encrypts the payload, after its compression, with AES-GCM, which also
shows whether it was the right one. The package cryptography does both. Java's and C++'s clients write the
same; they are not used to read, since they leave out in silence what no key opens, and C++'s writes beyond a
buffer where chunks are to be had as they are.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any, Final

import numpy as np

from geminga.errors import GemingaError
from geminga.pipeline.columns.entries import NO_BATCH, Entries
from geminga.pipeline.columns.payloads import INFLATED_BYTES_MAX, BadPayload, entry_text
from geminga.pipeline.columns.protobuf_columns import PADDING_BYTES, Bytes
from geminga.wire import pulsar_pb2 as pb

_DATA_KEYS_MAX: Final = 1000
"""A producer makes a new one every four hours."""
_SHUT_UUIDS_MAX: Final = 100_000
_MESSAGE_BYTES_MIN: Final = 6
"""Of a message in a batch."""
_NO_VALUE: Final = pb.SingleMessageMetadata(payload_size=0, null_value=True).SerializeToString()
_NULL_IN_BATCH: Final = struct.pack(">I", len(_NO_VALUE)) + _NO_VALUE


class BadKey(GemingaError):
    """A private key that cannot be used; the text says why."""


class Decryptor:
    """Knows the data keys that it has met."""

    def __init__(self, private_key: bytes | None) -> None:
        """In PEM; None: nothing can be decrypted. Raises `BadKey`, also without the package cryptography."""
        self._private: Any = None if private_key is None else _loaded(private_key)
        self._data_keys: dict[bytes, Any] = {}
        self._shut_uuids: set[bytes] = set()

    def __call__(self, entries: Entries) -> Entries:
        """The entries in plain, in a buffer of their own. One that the key does not open is marked as
        `undecrypted`, and has as many null messages as its metadata says. Raises `BadPayload`.
        """
        rows = np.flatnonzero(entries.encrypted)
        raw = memoryview(entries.data.data).cast("B")
        end = int(entries.payload_end.max())
        parts: list[bytes | memoryview] = [raw[:end]]
        at, ends = entries.payload_at.copy(), entries.payload_end.copy()
        compression, null_value = entries.compression.copy(), entries.null_value.copy()
        undecrypted = entries.undecrypted.copy()
        for row in rows.tolist():
            payload = self._opened(entries, row, raw)
            if payload is None:
                undecrypted[row] = null_value[row] = True
                compression[row] = 0
                payload = _nulls(entries, row)
            parts.append(payload)
            at[row] = end
            end += len(payload)
            ends[row] = end
        parts.append(bytes(PADDING_BYTES))
        data: Bytes = np.frombuffer(b"".join(parts), np.uint8)
        return replace(
            entries,
            data=data,
            payload_at=at,
            payload_end=ends,
            compression=compression,
            null_value=null_value,
            undecrypted=undecrypted,
            encrypted=np.zeros(len(entries), bool),
        )

    def _opened(self, entries: Entries, row: int, raw: memoryview) -> bytes | None:
        payload = bytes(raw[entries.payload_at[row] : entries.payload_end[row]])
        metadata = pb.MessageMetadata.FromString(
            bytes(raw[entries.metadata_at[row] : entries.payload_at[row]])
        )
        found = self._plain(metadata, payload)
        if entries.chunk_id[row] < 0:
            return found
        # A message whose chunks are not all open has no value: what is open of it would pass for all of it.
        uuid = entries.uuid_of(row)
        if found is None and len(self._shut_uuids) < _SHUT_UUIDS_MAX:
            self._shut_uuids.add(uuid)
        elif uuid in self._shut_uuids:
            found = None
        if entries.chunk_id[row] == entries.chunks[row] - 1:
            self._shut_uuids.discard(uuid)
        return found

    def _plain(self, metadata: pb.MessageMetadata, payload: bytes) -> bytes | None:
        from cryptography.exceptions import InvalidTag

        for each in metadata.encryption_keys:
            cipher = self._cipher(each.value)
            if cipher is None:
                continue
            try:
                return bytes(cipher.decrypt(metadata.encryption_param, payload, None))
            except (InvalidTag, ValueError):
                continue
        return None

    def _cipher(self, encrypted: bytes) -> Any:
        """For a data key as the metadata has it; None: it was encrypted for another private key."""
        if self._private is None:
            return None
        if encrypted not in self._data_keys:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM

            if len(self._data_keys) >= _DATA_KEYS_MAX:
                self._data_keys.clear()
            try:
                self._data_keys[encrypted] = AESGCM(self._private.decrypt(encrypted, _oaep()))
            except ValueError:
                self._data_keys[encrypted] = None
        return self._data_keys[encrypted]


def _loaded(private_key: bytes) -> Any:
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError:
        raise BadKey("decryption needs the package cryptography: pip install cryptography") from None
    try:
        found = load_pem_private_key(private_key, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise BadKey(f"it is not a private key in PEM without a password: {error}") from None
    if not isinstance(found, RSAPrivateKey):
        raise BadKey(f"it is not a key for RSA but {type(found).__name__}")
    return found


def _oaep() -> Any:
    from cryptography.hazmat.primitives.asymmetric.padding import MGF1, OAEP
    from cryptography.hazmat.primitives.hashes import SHA1

    return OAEP(MGF1(SHA1()), SHA1(), None)


def _nulls(entries: Entries, row: int) -> bytes:
    """The payload of an entry whose messages have no value."""
    count = int(entries.batch_messages[row])
    if count == NO_BATCH:
        return b""
    compressed = entries.compression[row] != 0
    size_bytes = int(
        entries.uncompressed_bytes[row] if compressed else entries.payload_end[row] - entries.payload_at[row]
    )
    if not 0 <= count * _MESSAGE_BYTES_MIN <= size_bytes <= INFLATED_BYTES_MAX:
        raise BadPayload(
            f"entry {entry_text(entries, row)}: says that it has {count} messages in {size_bytes} bytes"
        )
    return _NULL_IN_BATCH * count
