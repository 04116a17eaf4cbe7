"""Columns of numbers as few bytes: variable-length integers, fixed widths, deflate. Pure, and all in numpy.

Every reader here checks what it reads: bytes that were not written by its counterpart raise ValueError, and
none of them allocates more than a small multiple of the count that it is given.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

import numpy as np

from geminga.tracker.format.rows import Integers

# protobuf's take ten for negative numbers; here zigzag keeps all of them non-negative.
_VARINT_BYTES_MAX: Final = 9
"""Nine groups of seven bits: every integer that is not negative."""
# Numbers are read by one unaligned load of eight bytes, whatever bit they begin at.
WIDTH_MAX: Final = 56
"""Widest packed number: with up to seven bits of offset it still lies within eight bytes."""
_RAW, _DEFLATED = range(2)
# A deflate stream's own overhead is several bytes.
_DEFLATE_BYTES_MIN: Final = 16
_SAMPLE_BYTES: Final = 512
_WORD: Final = np.dtype("<u8")
_SHORT_WORD: Final = np.dtype("<u4")
_SHORT_WIDTH_MAX: Final = 25
"""The widest for which half a word does."""


# -- variable-length integers ---------------------------------------------------------------------------


def to_varints(numbers: Integers) -> bytes:
    """Little-endian groups of seven bits, the eighth set in all but a number's last. None is negative."""
    if not len(numbers):
        return b""
    highest = int(numbers.max())
    if highest < 0x80:
        return numbers.astype(np.uint8).tobytes()
    # As many passes as the longest number needs; most columns have one or two groups.
    groups = -(-highest.bit_length() // 7)
    shifted = numbers[:, None] >> (7 * np.arange(groups))
    more = shifted[:, 1:] != 0
    parts = (shifted & 0x7F).astype(np.uint8)
    parts[:, :-1] |= more.astype(np.uint8) << 7
    wanted = np.ones(parts.shape, bool)
    wanted[:, 1:] = more
    return parts[wanted].tobytes()


def from_varints(data: bytes, count: int) -> Integers:
    """Exactly `count` numbers that take exactly these bytes. ValueError."""
    octets = np.frombuffer(data, np.uint8)
    is_last = octets < 0x80
    going_on = np.flatnonzero(~is_last)
    # Count and bytes must agree before anything is allocated by the count.
    if len(data) - len(going_on) != count or (len(data) and not is_last[-1]):
        raise ValueError(f"{len(data) - len(going_on)} numbers in {len(data)} bytes, {count} expected")
    # All one byte: a view and a widening, no arithmetic.
    if not len(going_on):
        return octets.astype(np.int64)
    # Most take one byte: the last of each first, and to those that are longer what stands before it.
    numbers: Integers = octets[is_last].astype(np.int64)
    ending = np.flatnonzero(is_last[going_on + 1])
    at = going_on[ending]
    longer = at - ending
    for _ in range(_VARINT_BYTES_MAX - 1):
        numbers[longer] = numbers[longer] << 7 | (octets[at] & 0x7F)
        before = at - 1
        more = (at > 0) & ~is_last[before]
        if not bool(more.any()):
            return numbers
        at, longer = before[more], longer[more]
    # Ten groups overflow int64 and would come back as a negative step.
    raise ValueError(f"a number of more than {_VARINT_BYTES_MAX} bytes")


# -- fixed widths ---------------------------------------------------------------------------------------


def to_widths(numbers: Integers, width: int) -> bytes:
    """The low `width` bits of each, one after the other from the lowest bit of the first byte on."""
    if not width:
        return b""
    octets = numbers.astype(_WORD).view(np.uint8).reshape(len(numbers), 8)[:, : -(-width // 8)]
    # Bit by bit is slow, but it is done once, when a bucket is sealed; reading is the frequent side.
    bits = np.unpackbits(octets, axis=1, bitorder="little")[:, :width]
    return np.packbits(bits.reshape(-1), bitorder="little").tobytes()


def from_widths(data: bytes, count: int, width: int) -> Integers:
    """`count` numbers of `width` bits that take exactly these bytes. ValueError."""
    if width > WIDTH_MAX or len(data) != -(-count * width // 8):
        raise ValueError(f"{len(data)} bytes for {count} numbers of {width} bits")
    if not width:
        return np.zeros(count, np.int64)
    # The last loads reach beyond the data; numpy refuses to read there.
    padded = data + bytes(8)
    # Up to 25 bits, with up to 7 bits before them in their first byte, fit into four bytes: the temporary
    # arrays are half as large.
    word = _WORD if width > _SHORT_WIDTH_MAX else _SHORT_WORD
    mask = word.type((1 << width) - 1)
    numbers = np.empty(count, np.int64)
    # Every eighth number begins at the same bit of a byte, `width` bytes behind the one before.
    for first in range(min(8, count)):
        at, shift = divmod(first * width, 8)
        words = np.ndarray((-(-(count - first) // 8),), word, padded, at, (width,))
        numbers[first::8] = (words >> word.type(shift)) & mask
    return numbers


# -- deflate --------------------------------------------------------------------------------------------


def deflate(data: bytes) -> bytes:
    """As they are, or deflated if that is shorter: with matches, or without where there are hardly any."""
    if len(data) <= _DEFLATE_BYTES_MIN:
        return bytes((_RAW,)) + data
    sample = data[:_SAMPLE_BYTES]
    # Chosen by a sample: deflating everything in both ways would double the CPU of sealing. Noise has no
    # matches, and looking for them is what deflate costs.
    matching = 2 * len(_packed(sample, zlib.Z_DEFAULT_STRATEGY)) < len(sample)
    packed = _packed(data, zlib.Z_DEFAULT_STRATEGY if matching else zlib.Z_HUFFMAN_ONLY)
    return bytes((_DEFLATED,)) + packed if len(packed) < len(data) else bytes((_RAW,)) + data


def _packed(data: bytes, strategy: int) -> bytes:
    # Level 1, since buckets are sealed while the broker dispatches. A raw stream: zlib's header and Adler
    # checksum would repeat what the entry's CRC does.
    packer = zlib.compressobj(1, zlib.DEFLATED, -15, 9, strategy)
    return packer.compress(data) + packer.flush()


def inflate(data: bytes, bytes_max: int) -> bytes:
    """What `deflate` was given, if it was not longer than `bytes_max`. ValueError."""
    if not data:
        raise ValueError("no bytes")
    body = data[1:]
    if data[0] == _DEFLATED:
        unpacker = zlib.decompressobj(-15)
        try:
            # One byte more than allowed shows that there is more, without inflating it all.
            body = unpacker.decompress(body, bytes_max + 1)
        except zlib.error as error:
            raise ValueError(str(error)) from error
        # Trailing bytes would be lost in a rewrite, and a stream without an end was cut.
        if not unpacker.eof or unpacker.unused_data:
            raise ValueError("deflated bytes that do not end where they should")
    elif data[0] != _RAW:
        raise ValueError(f"unknown kind {data[0]}")
    if len(body) > bytes_max:
        raise ValueError(f"more than {bytes_max} bytes")
    return body


# -- sets of positions ----------------------------------------------------------------------------------

_STEPS, _RUNS, _SPLIT_STEPS = range(3)
_SET: Final = struct.Struct("<BIq")
"""Which of the two, how many numbers, and the first of the set."""


def to_positions(codes: Integers) -> bytes:
    """Ascending numbers, at least one: how far each is from the one before, or where runs of neighbours begin
    and how long these are, whichever is fewer numbers. Only in the first form a number may come twice.
    """
    steps = np.diff(codes)
    breaks = np.flatnonzero(steps != 1) + 1
    # A run costs two numbers, a step one. Repeated positions (step 0) cannot be said by runs.
    if 2 * (len(breaks) + 1) <= len(codes) and steps.min(initial=1) > 0:
        firsts = np.concatenate(([0], breaks))
        numbers = np.empty(2 * len(firsts), np.int64)
        numbers[0] = 0
        # Less 2, since a gap of one would have continued the run: small gaps stay small varints.
        numbers[2::2] = steps[breaks - 1] - 2
        numbers[1::2] = np.diff(np.concatenate((firsts, [len(codes)]))) - 1
        kind = _RUNS
    else:
        return _steps_of(codes)
    return _SET.pack(kind, len(numbers), int(codes[0])) + deflate(to_varints(numbers))


def _steps_of(codes: Integers) -> bytes:
    steps = np.diff(codes, prepend=codes[0])
    plain = deflate(to_varints(steps))
    width = _low_bits(steps)
    if width:
        # Steps that are large and random: their low bits are noise, and only the rest is worth deflating.
        split = bytes((width,)) + to_widths(steps & ((1 << width) - 1), width)
        split += deflate(to_varints(steps >> width))
        if len(split) < len(plain):
            return _SET.pack(_SPLIT_STEPS, len(steps), int(codes[0])) + split
    return _SET.pack(_STEPS, len(steps), int(codes[0])) + plain


def _low_bits(steps: Integers) -> int:
    """An eighth of the typical step is as large a part of it as is noise for certain."""
    # The median and not the mean: the step from one ledger to the next is 2**32 and would dominate.
    typical = int(np.partition(steps, len(steps) // 2)[len(steps) // 2])
    return max(0, typical.bit_length() - 3)


def from_positions(data: bytes, count: int) -> Integers:
    """The `count` numbers that `to_positions` was given. ValueError."""
    firsts, lengths = runs_of_positions(data, count)
    if len(firsts) == count:
        return firsts
    # Each run's numbers are its first and so many more: one arange, shifted run by run.
    before = np.cumsum(lengths) - lengths
    positions: Integers = np.arange(count, dtype=np.int64) + np.repeat(firsts - before, lengths)
    return positions


def runs_of_positions(data: bytes, count: int) -> tuple[Integers, Integers]:
    """The same as runs: first numbers and lengths, which sum up to `count`; neighbours may touch."""
    if len(data) < _SET.size:
        raise ValueError(f"{len(data)} bytes for {count} positions")
    kind, size, first = _SET.unpack_from(data)
    # `size` is bounded by the count that the caller knows, so damaged data allocates nothing large.
    if kind not in (_STEPS, _RUNS, _SPLIT_STEPS) or not 1 <= size <= count:
        raise ValueError(f"{size} numbers of kind {kind} for {count} positions")
    numbers = _numbers_of(data[_SET.size :], size, kind)
    if kind != _RUNS:
        if size != count:
            raise ValueError(f"{size} steps for {count} positions")
        numbers[0] = first
        firsts, lengths = np.cumsum(numbers), np.ones(count, np.int64)
    else:
        if size % 2 or int(numbers[1::2].max()) >= count:
            raise ValueError("runs without ends")
        lengths = numbers[1::2] + 1
        steps = numbers[0::2].copy()
        steps[1:] += 1 + lengths[:-1]
        steps[0] = first
        firsts = np.cumsum(steps)
        if int(lengths.sum()) != count:
            raise ValueError(f"runs of {int(lengths.sum())} positions, {count} expected")
    # Positions are searched by bisection later; one out of order would be found by some look-ups and missed
    # by others.
    if first < 0 or (len(firsts) > 1 and int(np.diff(firsts).min()) < 0):
        raise ValueError("positions out of order")
    return firsts, lengths


def _numbers_of(data: bytes, size: int, kind: int) -> Integers:
    width = at = 0
    if kind == _SPLIT_STEPS:
        width = data[0]
        at = 1 + -(-size * width // 8)
    numbers = from_varints(inflate(data[at:], size * _VARINT_BYTES_MAX), size)
    if not width:
        return numbers
    # The shift below would drop bits and yield positions that exist, of other messages.
    if int(numbers.max()) >> (63 - min(width, WIDTH_MAX)):
        raise ValueError("steps that are too large")
    return (numbers << width) | from_widths(data[1:at], size, width)
