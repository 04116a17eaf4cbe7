"""The power goes at every disk operation of every script, in three ways; and the n-th operation fails, for
every n.

After each: recovery opens, all that was reported durable is there unaltered, nothing that was never added
is, a deleted ledger stays away, and what was served once is served after another crash.

The last part plants bugs and asserts that these loops notice.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import trio

from geminga.bookie import journal_scan, ledger_index, recovery, storage, write_caches
from geminga.bookie.bookie import Bookie
from geminga.bookie.entry_log_writer import EntryLogWriter
from geminga.bookie.index_format import DELETED
from geminga.bookie.journal_files import JournalFiles, JournalPosition
from geminga.bookie.ledger_writer import LedgerWriter
from geminga.chaos.sim_disk import SimDisk, SimFile
from geminga.chaos.sim_key_value import SimKeyValue
from geminga.errors import StorageError

MODES = ("drop", "keep", "torn")
NAMES = ("trickle", "bursts", "deletions", "fences", "large", "overlaps", "compactions")
World = Any
NewWorld = Callable[..., World]


def crash_points(new_world: NewWorld, script: Any, *, step: int = 1, seed: int = 0) -> Iterator[str]:
    """Crash `script` before each operation, in each way, check, and name the case; also once in each
    recovery.
    """
    at = 0
    ended = False
    while not ended:
        for mode in MODES:
            world = new_world(seed + at)
            world.disk.crash_at = at
            ended = world.run(script)
            world.crash(mode)
            case = f"operation {at}, {mode}"
            try:
                if mode == "torn":
                    # A second crash somewhere in the recovery, or right after it.
                    world.disk.crash_at = world.disk.operations + random.Random(seed + at).randrange(12)
                    world.recover()
                    world.crash("torn")
                world.check()
            except (AssertionError, BaseExceptionGroup) as error:
                raise AssertionError(f"{case}: {error}; last operations: {world.disk.log[-8:]}") from error
            yield case
        at += step


@pytest.mark.parametrize("name", NAMES)
def test_nothing_durable_is_lost_at_any_crash_point(new_world: NewWorld, scripts: Any, name: str) -> None:
    cases = list(crash_points(new_world, scripts[name]))
    assert len(cases) > 100


def test_logs_are_compacted_in_these_loops(new_world: NewWorld, scripts: Any) -> None:
    world = new_world()
    assert world.run(scripts["compactions"])
    assert world.logs_compacted >= 4


@pytest.mark.parametrize("name", NAMES)
def test_the_nth_operation_fails_and_nobody_is_told_otherwise(
    new_world: NewWorld, scripts: Any, name: str
) -> None:
    at = 0
    while failing_operation(new_world, scripts[name], at):
        at += 1
    assert at > 30


def failing_operation(new_world: NewWorld, script: Any, at: int) -> bool:
    """The `at`-th operation, reads included, fails and so does every later one on the same kind of thing.
    False if the script had fewer.
    """
    world = new_world(at)
    calls = 0
    broken: str | None = None

    def inject(kind: str, path: str) -> None:
        nonlocal calls, broken
        if calls == at:
            broken = kind
        calls += 1
        if kind == broken:
            raise StorageError(f"{path}: injected: cannot {kind}")

    world.disk.inject = inject
    ended = world.run(script)
    world.disk.inject = None
    if broken is None:
        assert ended
        return False
    for ledger in world.ledgers.values():
        pending = ledger.durable < len(ledger.bodies) - 1
        assert not pending or ledger.failure is not None, f"ledger {ledger.ledger_id} was left waiting"
    world.crash("drop")
    world.check()
    return True


# ---- the tests tested


def _skip_sync(monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    real = SimFile.sync

    def sync(file: SimFile) -> None:
        if not file.path.endswith(suffix):
            real(file)

    monkeypatch.setattr(SimFile, "sync", sync)


def journal_not_synced(patch: pytest.MonkeyPatch) -> None:
    _skip_sync(patch, ".journal")


def entry_log_not_synced(patch: pytest.MonkeyPatch) -> None:
    _skip_sync(patch, ".log")


def directory_not_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SimDisk, "sync_directory", lambda *_: None)


def reported_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    write, durable = JournalFiles.write, LedgerWriter.durable

    def early(self: JournalFiles, batches: Any) -> Any:
        for ledger_id, first, bodies in batches:
            writer = next(w for w in WRITERS if w.ledger_id == ledger_id and w._durable == first - 1)
            durable(writer, first + len(bodies) - 1)
        return write(self, batches)

    def init(self: LedgerWriter, *args: Any, **kwargs: Any) -> None:
        real_init(self, *args, **kwargs)
        WRITERS.append(self)

    real_init = LedgerWriter.__init__
    patch.setattr(LedgerWriter, "__init__", init)
    patch.setattr(LedgerWriter, "durable", lambda self, last: None)
    patch.setattr(JournalFiles, "write", early)


WRITERS: list[LedgerWriter] = []


def reported_although_the_write_failed(patch: pytest.MonkeyPatch) -> None:
    real = JournalFiles.write

    def write(self: JournalFiles, batches: Any) -> Any:
        file = self._file
        try:
            return real(self, batches)
        except StorageError:
            file.sync = lambda: None  # type: ignore[method-assign]
            return real(self, batches)

    patch.setattr(JournalFiles, "write", write)


def index_not_synced(patch: pytest.MonkeyPatch) -> None:
    real = SimKeyValue.write
    patch.setattr(
        SimKeyValue, "write", lambda self, puts, deletes=(), *, sync: real(self, puts, deletes, sync=False)
    )


def mark_too_far(patch: pytest.MonkeyPatch) -> None:
    real = write_caches.WriteCaches.swap

    def swap(self: write_caches.WriteCaches) -> Any:
        cache = real(self)
        self.flushing_position = JournalPosition(self.position.journal_id + 1, 0)
        return cache

    patch.setattr(write_caches.WriteCaches, "swap", swap)


def swap_loses_an_entry(patch: pytest.MonkeyPatch) -> None:
    real = write_caches.WriteCaches.swap

    def swap(self: write_caches.WriteCaches) -> Any:
        cache = real(self)
        for _, segments in cache.sorted_segments():
            del segments[-1:]
        return cache

    patch.setattr(write_caches.WriteCaches, "swap", swap)


def journal_released_before_the_index(patch: pytest.MonkeyPatch) -> None:
    real = storage.LedgerStorage.flush

    async def flush(self: storage.LedgerStorage, cache: Any, mark: Any, release: Any) -> None:
        release()
        await real(self, cache, mark, lambda: None)

    patch.setattr(storage.LedgerStorage, "flush", flush)


def checksum_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(journal_scan, "damaged_record", lambda segment: None)


def torn_group_taken_as_damage(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(journal_scan.JournalScan, "_was_synced", lambda self, end: True)


def replay_not_idempotent(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery.Recovery, "_last_entry_id", lambda self, ledger_id: -1)


def replay_served_without_flushing(patch: pytest.MonkeyPatch) -> None:
    real = recovery.Recovery._flush

    def flush(self: recovery.Recovery, mark: JournalPosition) -> None:
        self._index.flushed = lambda rows, mark: None  # type: ignore[method-assign]
        real(self, mark)

    patch.setattr(recovery.Recovery, "_flush", flush)


def fence_not_persisted(patch: pytest.MonkeyPatch) -> None:
    async def set_state(self: storage.LedgerStorage, ledger_id: int, state: Any) -> None:
        if state.kind == DELETED:
            self._index.set_state(ledger_id, state)

    patch.setattr(storage.LedgerStorage, "set_state", set_state)


def deletion_forgotten_too_early(patch: pytest.MonkeyPatch) -> None:
    real = ledger_index.LedgerIndex.purge

    def purge(self: ledger_index.LedgerIndex) -> Any:
        for ledger_id, state in self.states.items():
            self.states[ledger_id] = state._replace(position=JournalPosition(0, 0))
        return real(self)

    patch.setattr(ledger_index.LedgerIndex, "purge", purge)


def deletion_not_persisted(patch: pytest.MonkeyPatch) -> None:
    async def set_state(self: storage.LedgerStorage, ledger_id: int, state: Any) -> None:
        if state.kind == DELETED:
            self._index.states[ledger_id] = state
        else:
            self._index.set_state(ledger_id, state)

    patch.setattr(storage.LedgerStorage, "set_state", set_state)


def log_with_a_live_ledger_deleted(patch: pytest.MonkeyPatch) -> None:
    real = storage.LedgerStorage._delete_dead_logs

    def delete_dead_logs(self: storage.LedgerStorage) -> int:
        usage = self._index.usage
        self._index.usage = {log_id: ledgers for log_id, ledgers in usage.items() if len(ledgers) > 1}
        return real(self)

    patch.setattr(storage.LedgerStorage, "_delete_dead_logs", delete_dead_logs)


def delete_does_not_wait(patch: pytest.MonkeyPatch) -> None:
    async def delete_ledger(self: Bookie, ledger_id: int) -> None:
        self._caches.active.discard(ledger_id)

    patch.setattr(Bookie, "delete_ledger", delete_ledger)


def log_deleted_before_its_entries_moved(patch: pytest.MonkeyPatch) -> None:
    real = storage.LedgerStorage.move_slice

    async def move_slice(self: storage.LedgerStorage, slices: Any) -> int | None:
        usage = self._index.usage.pop(slices._log_id, None)
        self._delete_dead_logs()
        if usage is not None:
            self._index.usage[slices._log_id] = usage
        return await real(self, slices)

    patch.setattr(storage.LedgerStorage, "move_slice", move_slice)


def moved_in_the_index_before_the_copy_is_synced(patch: pytest.MonkeyPatch) -> None:
    real = EntryLogWriter.write

    def write(self: EntryLogWriter, cache: Any, topics: Any) -> Any:
        if len(topics) < 2:  # the few that compaction knows from a footer
            self._synced = 1 << 60
        return real(self, cache, topics)

    _skip_sync(patch, ".log")
    patch.setattr(EntryLogWriter, "write", write)


def rest_of_a_row_forgotten(patch: pytest.MonkeyPatch) -> None:
    real = ledger_index.LedgerIndex.move
    patch.setattr(ledger_index.LedgerIndex, "move", lambda self, taken, rest, new: real(self, taken, [], new))


def moved_although_deleted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ledger_index.LedgerIndex, "lives_in", lambda self, ledger_id, log_id: True)


PLANTED_IN_COMPACTION = (
    log_deleted_before_its_entries_moved,
    moved_in_the_index_before_the_copy_is_synced,
    rest_of_a_row_forgotten,
    moved_although_deleted,
)


@pytest.mark.parametrize("plant", PLANTED_IN_COMPACTION, ids=lambda plant: plant.__name__)
def test_a_bug_planted_in_compaction_is_caught(
    monkeypatch: pytest.MonkeyPatch, new_world: NewWorld, scripts: Any, plant: Callable[..., None]
) -> None:
    plant(monkeypatch)
    with pytest.raises(BaseException) as caught:
        for _ in crash_points(new_world, scripts["compactions"], step=3):
            pass
    assert all(isinstance(leaf, (AssertionError, StorageError)) for leaf in leaves(caught.value))


PLANTED = (
    reported_before_the_sync,
    journal_not_synced,
    entry_log_not_synced,
    directory_not_synced,
    reported_although_the_write_failed,
    index_not_synced,
    mark_too_far,
    swap_loses_an_entry,
    journal_released_before_the_index,
    checksum_not_looked_at,
    torn_group_taken_as_damage,
    replay_not_idempotent,
    replay_served_without_flushing,
    fence_not_persisted,
    deletion_forgotten_too_early,
    deletion_not_persisted,
    log_with_a_live_ledger_deleted,
    delete_does_not_wait,
)


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_caught(
    monkeypatch: pytest.MonkeyPatch, new_world: NewWorld, scripts: Any, plant: Callable[..., None]
) -> None:
    plant(monkeypatch)
    WRITERS.clear()
    with pytest.raises(BaseException) as caught:
        everything(new_world, scripts)
    assert all(isinstance(leaf, (AssertionError, StorageError)) for leaf in leaves(caught.value))


def everything(new_world: NewWorld, scripts: Any) -> None:
    """A part of both loops over all scripts."""
    for name in ("overlaps", "large", "fences"):
        for _ in crash_points(new_world, scripts[name], step=3):
            pass
        at = 0
        while failing_operation(new_world, scripts[name], at):
            at += 2


def leaves(error: BaseException) -> Iterator[BaseException]:
    """What went wrong in the end, a harness's report not counted."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    elif isinstance(error, AssertionError) and isinstance(
        error.__cause__, (AssertionError, BaseExceptionGroup)
    ):
        yield from leaves(error.__cause__)
    elif not isinstance(error, trio.Cancelled):
        yield error
