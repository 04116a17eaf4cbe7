"""Several buckets as one: what is still wanted, all of it, in order, a few segments at a time."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geminga.errors import CorruptData
from geminga.tracker.buckets.merging import DamagedSource, Merger
from geminga.tracker.format.bucket_format import EncodedBucket, decode_directory, encode_bucket, members_of
from geminga.tracker.format.rows import Rows, code_of, concatenate, from_columns

Triple = tuple[int, int, int]


def encoded_of(triples: set[Triple], first: int, last: int, indexes_max: int) -> EncodedBucket:
    rows = from_columns([t for t, _, _ in triples], [code_of(ledger, e) for _, ledger, e in triples]).sorted()
    return encode_bucket(first, last, rows, 50, indexes_max)


def merged(
    sources: list[EncodedBucket], live: set[tuple[int, int]], indexes_max: int, read: int
) -> tuple[list[Triple], EncodedBucket]:
    """Read `read` segments at once."""
    members = members_of(from_columns([], [code_of(*place) for place in sorted(live)]).codes) if live else {}
    merger = Merger([decode_directory(s.directory) for s in sources], members, 50, indexes_max)
    segments = []
    while wanted := merger.wanted():
        segments += merger.step({n: sources[n].segments[first : first + read] for n, first in wanted})
    rest = merger.finish()
    result = EncodedBucket(segments + rest.segments, rest.directory)
    return triples_of(result), result


def triples_of(encoded: EncodedBucket) -> list[Triple]:
    if not encoded.directory:
        return []
    directory = decode_directory(encoded.directory)
    parts = [directory.decode_segment(n, entry) for n, entry in enumerate(encoded.segments)]
    rows: Rows = concatenate(parts)
    return [
        (time_ms, code >> 32, code & 0xFFFFFFFF)
        for time_ms, code in zip(rows.times_ms.tolist(), rows.codes.tolist(), strict=True)
    ]


@given(st.integers(0, 10**9), st.integers(1, 7), st.integers(1, 4))
def test_merging_is_sorting_what_is_wanted(seed: int, indexes_max: int, read: int) -> None:
    """Pulsar's DelayedIndexQueueTest (k-way merge) and testMergePreservesAllSnapshotSegments."""
    chance = random.Random(seed)
    sources, everything = [], set()
    for number in range(chance.randrange(1, 6)):
        triples = {
            (chance.randrange(chance.choice([3, 400])), 2 * number + chance.randrange(2), entry_id)
            for entry_id in range(chance.randrange(1, 30))
        }
        everything |= triples
        sources.append(encoded_of(triples, 2 * number, 2 * number + 1, chance.randrange(1, 9)))
    live = {(ledger, entry) for _, ledger, entry in everything if chance.random() < chance.choice([0.1, 1])}
    live |= {(0, 1000), (99, 1)}  # tracked, but not by these buckets
    wanted = sorted(t for t in everything if t[1:] in live)
    found, result = merged(sources, live, indexes_max, read)
    assert found == wanted
    if wanted:
        directory = decode_directory(result.directory)
        assert (directory.start_ledger, directory.end_ledger) == (0, 2 * len(sources) - 1)
        assert directory.members == members_of(from_columns([], [code_of(*t[1:]) for t in wanted]).codes)
        one_pass = encode_bucket(
            0,
            2 * len(sources) - 1,
            from_columns([t for t, _, _ in wanted], [code_of(*t[1:]) for t in wanted]).sorted(),
            50,
            indexes_max,
        )
        assert result == one_pass, "cut as if it had been sealed at once"


def test_many_rows_of_one_millisecond() -> None:
    sources = [encoded_of({(5, n, e) for e in range(100)}, n, n, 7) for n in range(3)]
    found, _ = merged(sources, {(n, e) for n in range(3) for e in range(100)}, 7, 1)
    assert found == [(5, n, e) for n in range(3) for e in range(100)]


def test_nothing_left_to_merge() -> None:
    source = encoded_of({(5, 1, 1), (9, 1, 2)}, 1, 1, 1)
    assert merged([source], {(7, 7)}, 5, 1)[1] == EncodedBucket([], [])


def test_a_damaged_source_is_named() -> None:
    good, bad = (encoded_of({(5, n, e) for e in range(9)}, n, n, 3) for n in (1, 2))
    merger = Merger([decode_directory(b.directory) for b in (good, bad)], {}, 50, 3)
    damaged = bad.segments[0][:-1] + bytes([bad.segments[0][-1] ^ 1])
    with pytest.raises(DamagedSource) as caught:
        merger.step({0: good.segments[:1], 1: [damaged]})
    assert caught.value.number == 1
    assert isinstance(caught.value, CorruptData)


def test_no_more_than_a_few_segments_are_held() -> None:
    sources = [encoded_of({(10 * e + n, n, e) for e in range(2000)}, n, n, 50) for n in range(4)]
    live = members_of(from_columns([], [code_of(n, e) for n in range(4) for e in range(2000)]).codes)
    merger = Merger([decode_directory(s.directory) for s in sources], live, 10**6, 50)
    most = came = 0
    while wanted := merger.wanted():
        came += len(merger.step({n: sources[n].segments[first : first + 2] for n, first in wanted}))
        held = sum(source.rows.length for source in merger._sources) + merger._pending.length
        most = max(most, held)
    assert came >= 150
    assert most <= 4 * 100 + 50
