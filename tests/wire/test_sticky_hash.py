"""The hash of keys: what the protocol's other implementations compute."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geminga.wire import client_commands
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.message_metadata import peek, sticky_hash, sticky_key, sticky_key_hash, sticky_range_hash
from geminga.wire.sticky_hash import _murmur3
from tests.oracle.tables import json_rows, rows


def entry(**fields: object) -> bytes:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=77, publish_time=5, **fields)  # type: ignore[arg-type]
    return client_commands.entry(metadata, b"payload")


@pytest.mark.parametrize(("key_hex", "hash_", "slot", "range_slot"), rows("sticky_hashes"))
def test_known_hashes_and_slots(key_hex: str, hash_: str, slot: str, range_slot: str) -> None:
    key = b"" if len(key_hex) < 2 else bytes.fromhex(key_hex)
    assert sticky_hash(key) == int(hash_)
    found = peek(entry(ordering_key=key))
    assert sticky_key_hash(found) == int(slot)
    assert sticky_range_hash(found) == int(range_slot)


@given(st.binary(max_size=300))
def test_cached_and_fresh_hashes_agree(key: bytes) -> None:
    assert sticky_hash(key) == sticky_hash(key) == _murmur3(key)
    assert 0 <= sticky_hash(key) < 2**31


@given(st.binary(max_size=40))
def test_slots_are_never_zero(key: bytes) -> None:
    found = peek(entry(ordering_key=key))
    assert 1 <= sticky_key_hash(found) <= 65_535
    assert 1 <= sticky_range_hash(found) <= 65_535


def test_the_ordering_key_goes_first_then_the_partition_key_then_the_entry_itself() -> None:
    assert sticky_key(peek(entry(ordering_key=b"o", partition_key="k"))) == b"o"
    assert sticky_key(peek(entry(partition_key="k"))) == b"k"
    assert sticky_key(peek(entry(partition_key=""))) == b""
    assert sticky_key(peek(entry())) == b"p-77"


def test_a_sequence_id_of_minus_one_keeps_its_sign() -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=2**64 - 1, publish_time=5)
    assert sticky_key(peek(client_commands.entry(metadata, b""))) == b"p--1"


@given(st.binary(max_size=20))
def test_base64_keys_are_decoded(key: bytes) -> None:
    encoded = base64.b64encode(key).decode()
    for text in (encoded, encoded.rstrip("=")):
        assert sticky_key(peek(entry(partition_key=text, partition_key_b64_encoded=True))) == key


@pytest.mark.parametrize(("text", "key"), json_rows("sticky_keys"))
def test_odd_base64_is_judged_as_by_pulsar(text: str, key: str) -> None:
    assert sticky_key(peek(entry(partition_key=text, partition_key_b64_encoded=True))) == key.encode()
