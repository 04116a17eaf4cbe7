"""Maps flushed entries to their records, and stores which ledgers are fenced or deleted and where a replay
begins.

Blocking; the writing methods are for one thread at a time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence, Set
from typing import NamedTuple

from geminga.bookie.index.index_format import (
    ASIDE,
    COVERED_KEY,
    DEAD_KEY,
    DELETED,
    KEPT_KEY,
    LEDGER_ID_MAX,
    NEXT_LOG_KEY,
    REBUILD_KEY,
    UNSORTED_KEY,
    Kept,
    LogPosition,
    Row,
    State,
    Usage,
    decode_kept,
    decode_log_ids,
    decode_log_position,
    decode_mark,
    decode_row,
    decode_state,
    decode_usage,
    encode_kept,
    encode_log_ids,
    encode_log_position,
    encode_mark,
    encode_row,
    encode_state,
    encode_usage,
    entry_key,
    ledger_of_state_key,
    mark_key,
    row_end,
    split_key,
    state_key,
    usage_key,
)
from geminga.bookie.records.journal_position import JournalPosition
from geminga.storage.key_value import KeyValue

# RocksDB builds a batch in memory, and an index may have millions of rows.
CLEARED_ROWS_MAX = 10_000
"""The limit of rows that one batch deletes."""


class LedgerRow(NamedTuple):
    ledger_id: int
    row: Row


class LedgerIndex:
    """One ledger directory's rows in a `KeyValue` of their own."""

    def __init__(self, key_value: KeyValue, *, journals: int = 1) -> None:
        """`journals` is the number of journals through which the entries come."""
        self._map = key_value
        # In memory, since each deletion asks which logs still have a living ledger: by rows that is a scan of
        # all.
        self.usage: dict[int, dict[int, Usage]] = {}
        """By entry log, the usage of each ledger with entries in that log; as of the last `flushed` or
        `purge`.
        """
        # In memory as well: every read asks whether its ledger is deleted.
        self.states: dict[int, State] = {}
        self.marks = (JournalPosition(0, 0),) * journals
        """For each journal, the mark: everything before it that belongs to this directory is in entry logs.
        """
        self.next_log_id = 1
        """The index never named a log with this id or a higher one."""
        self.covered: LogPosition | None = None
        """Every record before this position of the entry logs has a row, or was deleted or copied. Records
        behind it are of a flush that a crash cut short, or the index is older than the logs. None before the
        first flush, and in an index of a version that did not write it.
        """
        self.kept = Kept()
        self.dead: frozenset[int] = frozenset()
        """The logs that deletions and compactions have left without a living entry, until they are deleted.
        Another log without a living entry was not there when the index was made, or never had a row.
        """
        self._own_from = 0
        """Logs from this id on were written by this process."""
        self.rebuild_reason = ""
        """Why the index has to be rebuilt; "" again after the first marks."""
        self.unsorted = False
        """True from a rebuild or another mismatch until `set_aside` was called, which separates the deleted
        ledgers.
        """

    def load(self) -> None:
        """Read the parts that are kept in memory. Raises CorruptData if the index is damaged."""
        marks = (self._map.get(mark_key(journal)) for journal in range(len(self.marks)))
        self.marks = tuple(decode_mark(mark) if mark is not None else JournalPosition(0, 0) for mark in marks)
        self.rebuild_reason = (self._map.get(REBUILD_KEY) or b"").decode()
        self.unsorted = self._map.get(UNSORTED_KEY) is not None
        self.next_log_id = int.from_bytes(self._map.get(NEXT_LOG_KEY) or b"\1", "big")
        covered, kept = self._map.get(COVERED_KEY), self._map.get(KEPT_KEY)
        self.covered = decode_log_position(covered) if covered is not None else None
        self.kept = decode_kept(kept) if kept is not None else Kept()
        self.dead = frozenset(decode_log_ids(self._map.get(DEAD_KEY) or b""))
        for key, value in self._map.scan(usage_key(0, 0), usage_key(LEDGER_ID_MAX, 0)):
            log_id, ledger_id = split_key(key)
            self.usage.setdefault(log_id, {})[ledger_id] = decode_usage(value)
        for key, value in self._map.scan(state_key(0), state_key(LEDGER_ID_MAX)):
            self.states[ledger_of_state_key(key)] = decode_state(value)

    def find(self, ledger_id: int, entry_id: int) -> Row | None:
        """The row that covers the entry; None if there is none."""
        # One seek backwards, bounded by the ledger's first key: without the bound a ledger without rows would
        # get the last row of the ledger before it.
        found = self._map.last_before(entry_key(ledger_id, entry_id + 1), entry_key(ledger_id, 0))
        if found is None:
            return None
        row = decode_row(split_key(found[0])[1], found[1])
        return row if entry_id <= row.last else None

    def has_row(self, ledger_id: int, row: Row) -> bool:
        """Whether the index has exactly this row."""
        return self._map.get(entry_key(ledger_id, row.first)) == encode_row(row)

    def rows(self, ledger_id: int) -> list[Row]:
        """All rows of a ledger, in order of entries."""
        found = self._map.scan(entry_key(ledger_id, 0), entry_key(ledger_id + 1, 0))
        return [decode_row(split_key(key)[1], value) for key, value in found]

    def last_rows_in(self, log_ids: Set[int]) -> dict[int, LedgerRow]:
        """For each of these logs that a row names, the row whose records end last. Passes over all rows of
        all ledgers that have entries in them, with one row of each log in memory at a time.
        """
        ends = dict.fromkeys(log_ids, 0)
        found: dict[int, tuple[bytes, bytes]] = {}
        for ledger_id in {ledger_id for log_id in log_ids for ledger_id in self.usage.get(log_id, ())}:
            for key, value in self._map.scan(entry_key(ledger_id, 0), entry_key(ledger_id + 1, 0)):
                log_id, end = row_end(value)
                if end > ends.get(log_id, end):
                    ends[log_id], found[log_id] = end, (key, value)
        rows = {}
        for log_id, (key, value) in found.items():
            ledger_id, first = split_key(key)
            rows[log_id] = LedgerRow(ledger_id, decode_row(first, value))
        return rows

    def missing(self, ledger_id: int, entries: int, log_bytes: Mapping[int, int]) -> list[tuple[int, int]]:
        """(first, last) of the ledger's entries below `entries` that are in no log; ascending. These were
        never indexed, were destroyed in the journal, or are in a missing log or behind a log's end.
        `log_bytes` are the sizes of all logs.
        """
        found: list[tuple[int, int]] = []
        following = 0
        for row in self.rows(ledger_id):
            whole = bisect_right(row.ends, log_bytes.get(row.log_id, 0) - row.offset)
            if row.lost or not whole or row.first >= entries:
                continue
            if row.first > following:
                found.append((following, row.first - 1))
            following = row.first + whole
        return [*found, (following, entries - 1)] if following < entries else found

    def last_entry_id(self, ledger_id: int) -> int:
        """The last entry id in the index; -1 if the index has no entry of the ledger. May read one block
        from disk.
        """
        found = self._map.last_before(entry_key(ledger_id + 1, 0), entry_key(ledger_id, 0))
        return decode_row(split_key(found[0])[1], found[1]).last if found is not None else -1

    def ledgers(self) -> set[int]:
        """Every ledger with at least one entry in an entry log."""
        return {ledger_id for ledgers in list(self.usage.values()) for ledger_id in ledgers}

    def usage_of(self, ledger_id: int) -> Usage:
        """The usage of one ledger in all logs together."""
        found = [ledgers[ledger_id] for ledgers in list(self.usage.values()) if ledger_id in ledgers]
        return Usage(sum(usage.entries for usage in found), sum(usage.bytes for usage in found))

    def add_usage(self, sums: dict[int, Usage]) -> None:
        """Add to `sums`, by ledger, the usage in all logs together. Includes deleted ledgers until they are
        purged.
        """
        for ledgers in list(self.usage.values()):
            for ledger_id, usage in ledgers.items():
                known = sums.get(ledger_id)
                sums[ledger_id] = (
                    Usage(known.entries + usage.entries, known.bytes + usage.bytes) if known else usage
                )

    def flushed(
        self,
        rows: Sequence[LedgerRow],
        marks: tuple[JournalPosition, ...],
        *,
        covered: LogPosition | None = None,
        kept: Kept | None = None,
        looked_into: Collection[int] | None = None,
    ) -> None:
        """Write the rows of a flushed write cache, and the marks, before which this directory needs nothing.
        All or nothing; durable on return. The entry logs must be durable already. `covered` and `kept`
        replace the index's own, unless they are None: a recovery covers the logs only when it has looked at
        all of them. Those of `looked_into` without a living entry are dead from then on, and logs from
        `covered` on are this process' own.
        """
        assert len(marks) == len(self.marks)
        named = {row.log_id for _, row in rows} | {log for log, ledgers in self.usage.items() if ledgers}
        dead = frozenset(looked_into) - named if looked_into is not None else self.dead
        dead_put = _dead_put(dead) if looked_into is not None else []
        self._write_rows(rows, marks, [*_covered_put(covered), *_kept_put(kept), *dead_put])
        self.dead = dead
        if looked_into is not None and covered is not None:
            self._own_from = covered.log_id
        self.covered = covered or self.covered
        self.kept = kept if kept is not None else self.kept
        # Memory follows the disk. The journals are released by `marks`; set before a write that fails, they
        # would give up entries that no index has.
        self.marks = marks
        if marks[0].journal_id:
            self.rebuild_reason = ""

    def add_rows(self, rows: Sequence[LedgerRow]) -> None:
        """Add rows of entries that were found in a log."""
        self._write_rows(rows, (), [])

    def keep(self, kept: Kept, *, unsorted: bool = False) -> None:
        """Note which logs are kept from deletion; with `unsorted`, that deleted ledgers may be among the rows
        as well, since the files are newer than the states. Durable on return.
        """
        self._map.write([*_kept_put(kept), *([(UNSORTED_KEY, b"1")] if unsorted else [])], sync=True)
        self.kept = kept
        self.unsorted = self.unsorted or unsorted

    def clear(self) -> None:
        """Remove all rows, the marks first. Fences and deletions are kept: no entry log has them, and
        neither is ever revoked.
        """
        # First and synced: with rows gone and the mark still there, a crash would leave an empty index that
        # looks current.
        marks = [mark_key(journal) for journal in range(len(self.marks))]
        self._map.write([], [*marks, COVERED_KEY, DEAD_KEY], sync=True)
        for start in (entry_key(0, 0), usage_key(0, 0)):
            keys: list[bytes] = []
            for key, _ in self._map.scan(start, bytes([start[0] + 1])):
                keys.append(key)
                if len(keys) == CLEARED_ROWS_MAX:
                    self._map.write([], keys, sync=False)
                    keys = []
            self._map.write([], keys, sync=True)
        self.usage = {}
        self.dead = frozenset()
        self.covered = None
        self.marks = (JournalPosition(0, 0),) * len(self.marks)

    def _write_rows(
        self,
        rows: Sequence[LedgerRow],
        marks: tuple[JournalPosition, ...],
        others: Sequence[tuple[bytes, bytes]],
    ) -> None:
        puts = [*others]
        usage: dict[int, dict[int, Usage]] = {}
        for ledger_id, row in rows:
            puts.append((entry_key(ledger_id, row.first), encode_row(row)))
            if not row.lost:
                ledgers = usage.get(row.log_id)
                if ledgers is None:
                    # A copy, put in place after the write. Other threads read `usage` without a lock and must
                    # see all or nothing.
                    ledgers = usage[row.log_id] = dict(self.usage.get(row.log_id, {}))
                before = ledgers.get(ledger_id, Usage(0, 0))
                ledgers[ledger_id] = Usage(before.entries + len(row.ends), before.bytes + row.ends[-1])
        touched = {(row.log_id, ledger_id) for ledger_id, row in rows if not row.lost}
        puts += [
            (usage_key(log, ledger), encode_usage(usage[log][ledger])) for log, ledger in sorted(touched)
        ]
        puts += [(mark_key(journal), encode_mark(mark)) for journal, mark in enumerate(marks)]
        puts += self._next_log(rows)
        is_complete = bool(marks) and marks[0].journal_id > 0
        # Entries before the first marks: these come from logs and journals, which know of no deletion.
        unsorted = is_complete and not any(self.marks[0]) and bool(rows or self.usage)
        if unsorted:
            puts.append((UNSORTED_KEY, b"1"))
        # The reason for the rebuild goes in the batch of the first mark. Removed earlier, a crash would leave
        # an index that is half filled and does not say so; later, a sound one would be rebuilt.
        self._map.write(puts, [REBUILD_KEY] if self.rebuild_reason and is_complete else (), sync=True)
        self._note_logs(rows)
        self.usage.update(usage)
        self.unsorted = self.unsorted or unsorted

    def _next_log(self, rows: Sequence[LedgerRow]) -> list[tuple[bytes, bytes]]:
        """The row "n" if these rows are in a log that is newer than all others."""
        following = max((row.log_id + 1 for _, row in rows), default=0)
        return [(NEXT_LOG_KEY, following.to_bytes(8, "big"))] if following > self.next_log_id else []

    def _note_logs(self, rows: Sequence[LedgerRow]) -> None:
        """Follow `_next_log`, once its row is written: a full disk may have refused it."""
        self.next_log_id = max([self.next_log_id, *(row.log_id + 1 for _, row in rows)])

    def move(
        self,
        taken: Sequence[LedgerRow],
        rest: Sequence[LedgerRow],
        new: Sequence[LedgerRow],
        *,
        covered: LogPosition | None = None,
    ) -> None:
        """Move rows of entries that were copied to another log, in one synced batch. The copies are durable
        already.

        `taken` are rows of the index, or parts of them; `rest` are the remaining parts of these rows; `new`
        are the rows of the copies. Rows of ledgers that were deleted meanwhile are left out. For `covered`,
        see `flushed`.
        """
        usage = {row.log_id: dict(self.usage.get(row.log_id, {})) for _, row in (*taken, *new)}
        # Deleted while its records were copied. Rows written now would bring it back: `purge` may have run
        # already.
        gone = {ledger_id for ledger_id, row in taken if not self.lives_in(ledger_id, row.log_id)}
        puts = {}
        touched = set()
        for sign, rows in ((-1, taken), (1, new)):
            for ledger_id, row in rows:
                if ledger_id not in gone:
                    touched.add((row.log_id, ledger_id))
                    before = usage[row.log_id].get(ledger_id, Usage(0, 0))
                    usage[row.log_id][ledger_id] = Usage(
                        before.entries + sign * len(row.ends), before.bytes + sign * row.ends[-1]
                    )
        for ledger_id, row in (*rest, *new):
            if ledger_id not in gone:
                puts[entry_key(ledger_id, row.first)] = encode_row(row)
        keys = (entry_key(ledger_id, row.first) for ledger_id, row in taken if ledger_id not in gone)
        deletes = [key for key in keys if key not in puts]
        for log_id, ledger_id in sorted(touched):
            left = usage[log_id][ledger_id]
            # A cheap check of the pair "rows" and "usage": a log whose sum falls to zero too early is deleted
            # with entries in it.
            assert left.entries >= 0, f"more entries of ledger {ledger_id} left log {log_id} than were there"
            if left.entries:
                puts[usage_key(log_id, ledger_id)] = encode_usage(left)
            else:
                deletes.append(usage_key(log_id, ledger_id))
                del usage[log_id][ledger_id]
        # A log that a compaction empties may also have entries of ledgers that were deleted long ago.
        emptied = {log_id for log_id, ledgers in usage.items() if not ledgers}
        dead = self.dead | emptied
        others = [*self._next_log(new), *_covered_put(covered), *(_dead_put(dead) if emptied else [])]
        self._map.write([*puts.items(), *others], deletes, sync=True)
        self._note_logs(new)
        self.covered = covered or self.covered
        self.dead = dead
        for log_id, ledgers in usage.items():
            if ledgers:
                self.usage[log_id] = ledgers
            else:
                self.usage.pop(log_id, None)

    def is_deleted(self, ledger_id: int) -> bool:
        """Whether the ledger has the state "deleted". It loses that when no file may have its entries."""
        state = self.states.get(ledger_id)
        return state is not None and state.kind == DELETED

    def lives_in(self, ledger_id: int, log_id: int) -> bool:
        """Whether the log has entries of the ledger, and the ledger is not deleted."""
        return not self.is_deleted(ledger_id) and ledger_id in self.usage.get(log_id, ())

    def set_state(self, ledger_id: int, state: State) -> None:
        """Durable on return."""
        self._map.write([(state_key(ledger_id), encode_state(state))], sync=True)
        self.states[ledger_id] = state

    def set_aside(self, ledger_ids: Collection[int], *, lift: Collection[int] = ()) -> None:
        """Set these ledgers aside, so that they are no longer served; the ledgers in `lift` are served
        again. All or nothing, durable on return. The index is not `unsorted` from then on.
        """
        aside = State(ASIDE, JournalPosition(0, 0))
        deletes = [state_key(ledger_id) for ledger_id in lift]
        if self.unsorted:
            deletes.append(UNSORTED_KEY)
        self._map.write([(state_key(each), encode_state(aside)) for each in ledger_ids], deletes, sync=True)
        self.states.update(dict.fromkeys(ledger_ids, aside))
        for ledger_id in lift:
            self.states.pop(ledger_id, None)
        self.unsorted = False

    def in_state(self, kind: int) -> set[int]:
        """The ledgers that are fenced, deleted, or aside."""
        return {ledger_id for ledger_id, state in list(self.states.items()) if state.kind == kind}

    def purge(self, covered: LogPosition | None = None, log_ids: Sequence[int] = ()) -> list[int]:
        """Remove the rows of deleted ledgers; durable on return. Returns the ledgers whose rows were removed.
        For `covered` see `flushed`; `log_ids` are the existing logs.

        The state "deleted" remains until the journal of its position is released, because a replay could
        find the ledger's entries until then.
        """
        deletes = []
        purged = []
        forgotten = []
        for ledger_id, state in self.states.items():
            if state.kind != DELETED:
                continue
            rows = [key for key, _ in self._map.scan(entry_key(ledger_id, 0), entry_key(ledger_id + 1, 0))]
            if rows:
                purged.append(ledger_id)
            deletes += rows
            deletes += [
                usage_key(log, ledger_id) for log, ledgers in self.usage.items() if ledger_id in ledgers
            ]
            # Recovery does not ask the metadata, so the state has to outlive every journal that may hold the
            # ledger's entries: a replay would bring back what an operator deleted.
            if state.position <= self.marks[ledger_id % len(self.marks)]:
                deletes.append(state_key(ledger_id))
                forgotten.append(ledger_id)
        if deletes:
            # Covered in the same batch: a compaction that was cut short may have left records of these
            # ledgers behind the position, and without a state nothing would tell them from confirmed entries
            # that the index has lost.
            # The same goes for whole logs, which are deleted after this.
            left = {log for log, ledgers in self.usage.items() if not ledgers.keys() <= set(purged)}
            # A log that was put back while the bookie runs is none of these: no start has looked into it.
            known = self.dead | self.usage.keys()
            own = (log_id for log_id in log_ids if log_id >= self._own_from or log_id in known)
            dead = frozenset(own) - left
            self._map.write([*_covered_put(covered), *_dead_put(dead)], deletes, sync=True)
            self.covered = covered or self.covered
            self.dead = dead
        for ledger_id in purged:
            for log_id, ledgers in self.usage.items():
                if ledger_id in ledgers:
                    # Replaced, not changed, for the threads that iterate over it.
                    self.usage[log_id] = {key: value for key, value in ledgers.items() if key != ledger_id}
        for ledger_id in forgotten:
            del self.states[ledger_id]
        return purged

    def forget_log(self, log_id: int) -> None:
        """Forget a deleted log, which no row names any more."""
        assert not self.usage.get(log_id)
        self.usage.pop(log_id, None)
        self.dead -= {log_id}


def _covered_put(covered: LogPosition | None) -> list[tuple[bytes, bytes]]:
    return [(COVERED_KEY, encode_log_position(covered))] if covered is not None else []


def _dead_put(dead: Collection[int]) -> list[tuple[bytes, bytes]]:
    return [(DEAD_KEY, encode_log_ids(sorted(dead)))]


def _kept_put(kept: Kept | None) -> list[tuple[bytes, bytes]]:
    return [(KEPT_KEY, encode_kept(kept))] if kept is not None else []
