"""The index's rows. `docs/formats/index.md` is the page for people.

    "e" ledger u64 first u64      -> row         where the records of a run of entries are
    "g" log u64 ledger u64        -> usage       how much of an entry log is a ledger's
    "i"                           -> owner       whose index it is; absent in one of an earlier version
    "k"                           -> kept        entry logs that are not deleted, as a start found a mismatch
    "l" ledger u64                -> state       fenced, deleted or aside; absent for all others
    "m"                           -> mark        the journal position up to which all is in entry logs
    "m" journal u32               -> mark        the mark for each further journal, numbered from 1
    "n"                           -> log u64     the next new entry log's id; none below it is used again
    "p"                           -> log position  each record before it has a row, or needs none
    "r"                           -> text        why the index is being rebuilt, until it is
    "u"                           -> "1"         deleted ledgers may be among the rows: it was rebuilt
    "x"                           -> log u64 *   logs without a living entry, which are to be deleted

A row covers consecutive entries whose records are contiguous in one log. Rows of a ledger never overlap.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from typing import Final, NamedTuple

from geminga.bookie.records.journal_position import JournalPosition
from geminga.bookie.records.owner import Owner
from geminga.bookie.records.records import compact

LEDGER_ID_MAX: Final = 2**63 - 1
# The mark is a row of this database and not a file (BookKeeper's `lastMark`): it has to move in the same
# batch as the rows, or a crash between the two skips the replay of entries that no row names.
MARK_KEY: Final = b"m"
# Kept, although ids could be counted from the files: the newest log may be deleted or lost, and a new log of
# its id would be read by every old row that names it.
NEXT_LOG_KEY: Final = b"n"
REBUILD_KEY: Final = b"r"
# Durable until the metadata has been asked: otherwise a crash right after a rebuild would serve ledgers that
# had been deleted.
UNSORTED_KEY: Final = b"u"
# The files may be newer than the index: it was copied first, or an old copy was put back. The journals show
# that only as long as they reach back to its mark, so the index also says how far it knows the entry logs.
COVERED_KEY: Final = b"p"
# A log without a row is one of these, or it was put back after the index was made without it.
DEAD_KEY: Final = b"x"
# The directory's cookie does not tell whose the index is: an index may be renamed, copied or mounted alone.
OWNER_KEY: Final = b"i"
KEPT_KEY: Final = b"k"
# All states lie together, so that they can be saved from a database in which another block is damaged.
STATE_KEYS: Final = (b"l", b"m")
"""The range of the keys of all states."""
# Big-endian, since RocksDB compares keys as bytes: "the greatest key not above" is one seek.
_KEY: Final = struct.Struct(">cQQ")
_JOURNAL: Final = struct.Struct(">I")
_STATE_KEY: Final = struct.Struct(">cQ")
_ROW: Final = struct.Struct(">BQQI")
"""kind | log id | offset | entries"""
# Most topics have messages of one size: a row of 1,000 entries takes 25 bytes then, instead of 4,021.
_EQUAL, _COLUMN, _LOST = 0, 1, 2
_SIZE: Final = struct.Struct(">I")
_USAGE: Final = struct.Struct(">IQ")
_STATE: Final = struct.Struct(">BQQ")
_MARK: Final = struct.Struct(">QQ")
_KEPT: Final = struct.Struct(">QI")
_OWNER: Final = struct.Struct(">I")
FENCED: Final = 1
DELETED: Final = 2
ASIDE: Final = 3
"""The ledger is neither served nor deleted, because the metadata has no record of it."""


class Row(NamedTuple):
    """Entries first .. first + len(ends) - 1 are in log `log_id` from `offset` on. `ends` is where each
    record ends, counted from `offset`.

    If the entries were destroyed in the journal, `lost` names the damage. Log id and offset then mean
    nothing, and of `ends` only the length counts.
    """

    first: int
    log_id: int
    offset: int
    ends: Sequence[int]
    lost: str = ""

    @property
    def last(self) -> int:
        return self.first + len(self.ends) - 1


def row_part(row: Row, first: int, last: int) -> Row:
    """The row of the entries first..last of this row."""
    if first == row.first and last == row.last:
        return row
    index = first - row.first
    begin = row.ends[index - 1] if index else 0
    # Ends are relative to the row, so a part of a row has to be counted again from its own start.
    ends = [end - begin for end in row.ends[index : last - row.first + 1]]
    return Row(first, row.log_id, row.offset + begin, compact(ends))


class Usage(NamedTuple):
    entries: int
    bytes: int


class LogPosition(NamedTuple):
    """A place in the entry logs of a directory, which are written one after the other."""

    log_id: int
    offset: int


class Kept(NamedTuple):
    """The entry logs that garbage collection spares after a mismatch, until an operator releases them, and
    what was missing. A release keeps the latter.
    """

    below: int = 0
    """Logs with smaller ids are kept."""
    short: tuple[tuple[int, int], ...] = ()
    """(log id, length in bytes) of each log that was missing, truncated, overwritten at its end or without a
    footer when a start last looked. A loss that was seen before is no new mismatch, and a log of another
    length is another file. Ascending.
    """
    journals: tuple[tuple[int, int], ...] = ()
    """(number of the journal directory from 0, journal id) of each journal that was needed and was not there.
    If it is put back, it is read, before anything may be written over it. Ascending.
    """


class State(NamedTuple):
    """The state of a ledger: FENCED, DELETED or ASIDE. For the first two, also the position up to which the
    journal may have the ledger's entries.
    """

    kind: int
    position: JournalPosition


def entry_key(ledger_id: int, entry_id: int) -> bytes:
    return _KEY.pack(b"e", ledger_id, entry_id)


def usage_key(log_id: int, ledger_id: int) -> bytes:
    return _KEY.pack(b"g", log_id, ledger_id)


def state_key(ledger_id: int) -> bytes:
    return _STATE_KEY.pack(b"l", ledger_id)


def mark_key(journal: int) -> bytes:
    """The key of a journal's mark. Journals are numbered from 0, in the order of their directories."""
    # The first journal keeps the key that it had before there could be several: one-disk directories of all
    # versions open alike.
    return MARK_KEY + _JOURNAL.pack(journal) if journal else MARK_KEY


def split_key(key: bytes) -> tuple[int, int]:
    """The two numbers of an entry or usage key."""
    _, first, second = _KEY.unpack(key)
    return first, second


def ledger_of_state_key(key: bytes) -> int:
    ledger_id: int = _STATE_KEY.unpack(key)[1]
    return ledger_id


def encode_row(row: Row) -> bytes:
    count = len(row.ends)
    # The text takes the place of the ends: no byte of such an entry can be addressed, only explained.
    if row.lost:
        return _ROW.pack(_LOST, 0, 0, count) + row.lost.encode()
    # `compact` makes a range exactly where all records are equally long.
    if isinstance(row.ends, range):
        return _ROW.pack(_EQUAL, row.log_id, row.offset, count) + _SIZE.pack(row.ends[0])
    return _ROW.pack(_COLUMN, row.log_id, row.offset, count) + struct.pack(f">{count}I", *row.ends)


def decode_row(first: int, value: bytes) -> Row:
    kind, log_id, offset, count = _ROW.unpack_from(value)
    if kind == _LOST:
        return Row(first, 0, 0, range(count), value[_ROW.size :].decode())
    if kind == _EQUAL:
        (size,) = _SIZE.unpack_from(value, _ROW.size)
        return Row(first, log_id, offset, range(size, size * count + 1, size))
    # An assertion and no CorruptData: RocksDB has checked the block, so another kind is a program's error, or
    # an older program's start on newer data, which the data directory's format refuses first.
    assert kind == _COLUMN, f"index row of unknown kind {kind}"
    ends = array("I")
    ends.frombytes(value[_ROW.size :])
    if array("H", b"\1\0")[0] == 1:
        ends.byteswap()
    assert len(ends) == count
    return Row(first, log_id, offset, ends)


def row_end(value: bytes) -> tuple[int, int]:
    """The row's log id and where its last record ends in that log, without decoding the rest; (0, 0) for a
    lost row.
    """
    kind, log_id, offset, count = _ROW.unpack_from(value)
    if kind == _LOST:
        return 0, 0
    (last,) = _SIZE.unpack_from(value, len(value) - _SIZE.size)
    return log_id, offset + (last * count if kind == _EQUAL else last)


def encode_usage(usage: Usage) -> bytes:
    return _USAGE.pack(*usage)


def decode_usage(value: bytes) -> Usage:
    return Usage(*_USAGE.unpack(value))


def encode_state(state: State) -> bytes:
    return _STATE.pack(state.kind, *state.position)


def decode_state(value: bytes) -> State:
    kind, journal_id, offset = _STATE.unpack(value)
    return State(kind, JournalPosition(journal_id, offset))


def encode_log_position(position: LogPosition) -> bytes:
    return _MARK.pack(*position)


def decode_log_position(value: bytes) -> LogPosition:
    return LogPosition(*_MARK.unpack(value))


def encode_kept(kept: Kept) -> bytes:
    pairs = b"".join(_MARK.pack(*each) for each in (*kept.short, *kept.journals))
    return _KEPT.pack(kept.below, len(kept.short)) + pairs


def decode_kept(value: bytes) -> Kept:
    below, short = _KEPT.unpack_from(value)
    pairs = tuple(_MARK.iter_unpack(value[_KEPT.size :]))
    return Kept(below, pairs[:short], pairs[short:])


def encode_owner(owner: Owner) -> bytes:
    return _OWNER.pack(owner.position) + owner.instance_id.encode()


def decode_owner(value: bytes) -> Owner:
    return Owner(value[_OWNER.size :].decode(), _OWNER.unpack_from(value)[0])


def encode_log_ids(log_ids: Sequence[int]) -> bytes:
    return struct.pack(f">{len(log_ids)}Q", *log_ids)


def decode_log_ids(value: bytes) -> tuple[int, ...]:
    return struct.unpack(f">{len(value) // 8}Q", value)


def encode_mark(mark: JournalPosition) -> bytes:
    return _MARK.pack(*mark)


def decode_mark(value: bytes) -> JournalPosition:
    return JournalPosition(*_MARK.unpack(value))
