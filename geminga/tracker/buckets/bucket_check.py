"""A whole bucket, looked into: whether its parts are right, and say the same."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from geminga.errors import CorruptData
from geminga.tracker.format.bucket_format import Directory, decode_directory, directory_pieces
from geminga.tracker.format.rows import Rows, concatenate


def whole_bucket(entries: Mapping[int, bytes]) -> tuple[Directory, Rows]:
    """From a bucket's entries by their ids: its directory and all rows, segment after segment. CorruptData:
    some are missing, damaged or contradict each other. A few milliseconds for 50,000 rows.
    """
    directory = _directory(entries)
    parts = []
    for segment in range(directory.segments):
        # A bucket from elsewhere may lack entries anywhere: it was read by another program, or rescued from
        # damaged files.
        if segment not in entries:
            raise CorruptData(f"segment {segment} is not there")
        parts.append(directory.decode_segment(segment, entries[segment]))
    rows = concatenate(parts)
    members = sum(len(ids) for ids in directory.members.values())
    # Each segment and the directory may be sound by itself and still be of two buckets. A position without a
    # row would be skipped by reads and never fall due, as happened in Pulsar (pull 26230).
    if len(np.unique(rows.codes)) != members:
        raise CorruptData(f"{members} members, and other rows")
    return directory, rows


def _directory(entries: Mapping[int, bytes]) -> Directory:
    if not entries:
        raise CorruptData("a bucket without an entry")
    last = max(entries)
    first = last - directory_pieces(entries[last]) + 1
    # Before decoding: a piece that is missing would otherwise be a piece of a wrong number, which says less.
    missing = [number for number in range(max(first, 0), last) if number not in entries]
    if first < 0 or missing:
        raise CorruptData("a piece of the directory is not there")
    directory = decode_directory([entries[number] for number in range(first, last + 1)])
    # The directory begins where the segments end. Any other number means that one of them was added or lost.
    if directory.segments != first:
        raise CorruptData(f"a directory of {directory.segments} segments at entry {first}")
    return directory
