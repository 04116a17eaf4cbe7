"""Payloads are inflated to what was compressed, and nonsense is refused quickly and without much memory."""

from __future__ import annotations

import zlib

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from geminga.admin.messages.inflate import (
    INFLATED_BYTES_MAX,
    BadPayload,
    NoDecoder,
    inflated,
)
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.blocks import STEPS_MAX, BadBlock, lz4_block, snappy_block, whole

CODECS = {pb.LZ4: "lz4_raw", pb.ZSTD: "zstd", pb.SNAPPY: "snappy"}
repetitive = st.builds(
    lambda parts, times: b"".join(parts) * times,
    st.lists(st.binary(max_size=40), max_size=20),
    st.integers(1, 40),
)


def compressed(kind: int, payload: bytes) -> bytes:
    if kind == pb.ZLIB:
        return zlib.compress(payload)
    return bytes(pa.Codec(CODECS[kind]).compress(payload, asbytes=True))


@given(payload=repetitive)
def test_blocks_are_what_was_compressed(payload):
    assert whole(lz4_block(compressed(pb.LZ4, payload), len(payload))) == payload
    assert whole(snappy_block(compressed(pb.SNAPPY, payload), len(payload))) == payload


@pytest.mark.parametrize("kind", [pb.LZ4, pb.ZLIB, pb.ZSTD, pb.SNAPPY])
@pytest.mark.parametrize("payload", [b"", b"a", bytes(range(256)) * 300, b"z" * 100_000])
async def test_each_kind_is_inflated(kind, payload):
    assert await inflated(kind, compressed(kind, payload), len(payload)) == payload


@pytest.mark.parametrize("kind", [pb.LZ4, pb.ZLIB, pb.ZSTD, pb.SNAPPY])
async def test_a_size_that_is_not_the_payloads_is_refused(kind):
    block = compressed(kind, b"some text, some text, some text")
    for size in (0, 30, 32, INFLATED_BYTES_MAX + 1, 2**32 - 1):
        with pytest.raises(BadPayload):
            await inflated(kind, block, size)


@given(block=st.binary(max_size=200), size=st.integers(0, 300))
def test_nonsense_ends_in_a_refusal_or_within_its_size(block, size):
    for decode in (lz4_block, snappy_block):
        try:
            found = whole(decode(block, size))
        except (BadBlock, IndexError):
            continue
        assert len(found) <= size + len(block) + 64


def test_a_long_block_is_decoded_in_slices():
    payload = b"".join(b"%d,%d;" % (number, number % 7) for number in range(20_000))
    steps = sum(1 for _ in lz4_block(compressed(pb.LZ4, payload), len(payload)))
    assert steps >= 20_000 // STEPS_MAX // 2


async def test_a_bomb_stops_at_the_size_that_it_claims():
    bomb = b"\x1fa\x01\x00" + b"\xff" * 4_000_000 + b"\x00\x00"  # one byte, a billion times
    with pytest.raises(BadPayload):
        await inflated(pb.LZ4, bomb, 1000)
    assert len(whole(lz4_block(bomb, 1000))) <= 1010


async def test_an_unknown_kind_has_no_decoder():
    with pytest.raises(NoDecoder):
        await inflated(99, b"x", 1)


async def test_what_is_not_compressed_stays():
    assert await inflated(pb.NONE, b"as it is", 0) == b"as it is"
