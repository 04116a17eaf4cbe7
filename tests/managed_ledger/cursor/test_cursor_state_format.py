"""The bytes of a cursor state: exactly as docs/formats/cursor.md says, and damage never passes."""

from __future__ import annotations

import random

import pytest
from pyroaring import BitMap

from geminga.errors import CorruptData
from geminga.managed_ledger.cursor.cursor_state_format import STATE_BYTES_MIN, CursorState, decode, encode

SMALL = CursorState((7, 41), {}, {})
FULL = CursorState(
    (7, 41),
    {7: BitMap([43, 44, 45, 90]), 9: BitMap(range(50_000)), 12: BitMap([0])},
    {(7, 42): 0b1011, (12, 3): 2**100 - 1},
)


def crc32c_by_the_bit(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_smallest_state_is_the_one_on_the_page() -> None:
    body = bytes.fromhex("070000000000000029000000000000000000000000000000")
    data = encode(SMALL, 1 << 20).data
    assert data == b"\x01" + crc32c_by_the_bit(body).to_bytes(4, "little") + body
    assert data[:5].hex() == "01f04985fa"
    assert len(encode(SMALL, 0).data) == STATE_BYTES_MIN == 29


@pytest.mark.parametrize("state", [SMALL, FULL, CursorState((-1, -1), {}, {(0, 0): 1})])
def test_state_comes_back(state: CursorState) -> None:
    encoded = encode(state, 1 << 20)
    assert encoded.left_out == 0
    assert decode(encoded.data) == state


def test_contiguous_acknowledgments_cost_nothing() -> None:
    assert len(encode(CursorState((1, 0), {2: BitMap(range(1, 50_000))}, {}), 1 << 20).data) < 64


def test_what_does_not_fit_is_left_out_from_the_far_end() -> None:
    pick = random.Random(1)
    state = CursorState(
        (1, 0), {i: BitMap(pick.sample(range(50_000), 1000)) for i in range(2, 20)}, {(30, 1): 3, (30, 2): 3}
    )
    whole = len(encode(state, 1 << 20).data)
    encoded = encode(state, whole // 2)
    assert len(encoded.data) <= whole // 2
    kept = decode(encoded.data)
    assert kept.mark_delete == (1, 0)
    assert list(kept.acknowledged) == list(range(2, 2 + len(kept.acknowledged)))
    assert encoded.left_out == 18 - len(kept.acknowledged) + 2 - len(kept.batches)
    assert encoded.left_out > 0


def test_every_flipped_bit_is_found() -> None:
    data = encode(CursorState((7, 41), {7: BitMap([43, 44, 90])}, {(7, 42): 5}), 1 << 20).data
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptData):
            decode(bytes(damaged))


def test_every_cut_and_every_addition_is_found() -> None:
    data = encode(FULL, 1 << 20).data
    for size in range(len(data)):
        with pytest.raises(CorruptData):
            decode(data[:size])
    with pytest.raises(CorruptData):
        decode(data + b"\0")
