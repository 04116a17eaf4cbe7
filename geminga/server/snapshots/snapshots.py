"""Saves, restores and resets the state of one open data directory, for the admin API."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import trio

from geminga import __version__
from geminga.bookie.running.directory_lists import DirectoryLists
from geminga.broker.flow.snapshot_reports import SavedSnapshot, SnapshotsReport
from geminga.clock import Clock, RealClock
from geminga.errors import Conflict, NotAllowed
from geminga.metadata.bookie_directories import recorded_directories
from geminga.metadata.ledger_ids import next_ledger_id
from geminga.metadata.records import InstanceRecord
from geminga.metadata.store import MetadataStore
from geminga.server.snapshots import swap as swaps
from geminga.server.snapshots.handover import Handover, Swap
from geminga.server.snapshots.manifest import (
    DATA,
    FORMAT_VERSION,
    Manifest,
    check_fits,
    copy_checked,
    list_files,
    read_manifest,
    write_manifest,
)
from geminga.server.snapshots.swap import Intent
from geminga.storage.disk import RealDisk

UNFINISHED = ".unfinished"
"""The suffix of a snapshot that is not complete."""
FREE_BYTES_MIN = 64 << 20
"""Free space that a restore must leave on the disk of the data directory."""


class Backups(Protocol):
    """Copies the data of the running broker."""

    async def check(self, directory: str) -> None:
        """Raises Conflict if a copy may not be there."""
        ...

    def __call__(self, directory: str) -> Awaitable[object]: ...


class OpenState(NamedTuple):
    """What is open."""

    data_dir: str
    instance: InstanceRecord
    clock: Clock
    metadata: MetadataStore
    backup: Backups
    persist_cursors: Callable[[], Awaitable[None]]


class Snapshots:
    """Belongs to the event loop. One call at a time; others are refused."""

    def __init__(self, state: OpenState, handover: Handover, *, allows_swaps: bool) -> None:
        """`allows_swaps`: whether the broker was started with `--chaos`."""
        self._state = state
        self._handover = handover
        self._allows_swaps = allows_swaps
        self._disk = RealDisk()
        self._is_busy = False

    def report(self) -> SnapshotsReport:
        return SnapshotsReport(last=self._handover.last)

    async def save(self, directory: str) -> SavedSnapshot:
        """As `SnapshotCalls.save`. Until it is complete, the directory's name ends with ".unfinished";
        that is deleted after an error or when cancelled.
        """
        target = directory.rstrip("/") or "/"
        with self._alone():
            began_s = trio.current_time()
            self._check_directories()
            await self._state.backup.check(target)
            unfinished = target + UNFINISHED
            await self._disk.run(self._disk.make_directory, unfinished)
            try:
                manifest = await self._copy(unfinished)
                await self._disk.run(self._finish, unfinished, target)
            except BaseException:
                with trio.CancelScope(shield=True):
                    await self._disk.run(self._disk.remove_tree, unfinished)
                raise
            seconds = round(trio.current_time() - began_s, 3)
            return SavedSnapshot(
                directory=target, files=len(manifest.files), bytes=manifest.bytes, seconds=seconds
            )

    async def _copy(self, unfinished: str) -> Manifest:
        state, disk = self._state, self._disk
        data = os.path.join(unfinished, DATA)
        # Else acknowledgements of the last quarter of a second would be missing, as after a crash.
        await state.persist_cursors()
        await state.backup(data)
        # After the copy: no entry in it has a later stamp.
        shown_ms = state.clock.now_ms()
        directories, files = await disk.run(list_files, disk, data)
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            geminga=__version__,
            directory_format=state.instance.format_version,
            cluster=state.instance.cluster,
            clock=state.instance.clock,
            saved_ms=RealClock().now_ms(),
            shown_ms=shown_ms,
            directories=directories,
            files=files,
        )
        await disk.run(write_manifest, disk, unfinished, manifest)
        return manifest

    def _finish(self, unfinished: str, target: str) -> None:
        self._disk.rename(unfinished, target)
        self._disk.sync_directory(os.path.dirname(target))

    async def prepare_restore(self, directory: str) -> None:
        with self._alone():
            self._check_swaps()
            if not os.path.isabs(directory):
                raise Conflict(f"{directory!r}: name the snapshot's directory by an absolute path")
            source = directory.rstrip("/") or "/"
            state = self._state
            manifest = await self._disk.run(read_manifest, self._disk, source)
            check_fits(manifest, source, cluster=state.instance.cluster, clock=state.instance.clock)
            await self._prepared(self._fill, manifest, source)
            self._handover.passed("restore-copied")
            shown_ms = manifest.shown_ms if manifest.clock == "virtual" else None
            self._want(Intent(what="restore", source=source), shown_ms)

    async def prepare_reset(self) -> None:
        with self._alone():
            self._check_swaps()
            await self._prepared(lambda: None)
            self._want(Intent(what="reset", source=""), None)

    def proceed(self) -> None:
        self._handover.answered()

    def _want(self, intent: Intent, shown_ms: int | None) -> None:
        state = self._state
        self._handover.want(Swap(intent, state.instance.clock, shown_ms, next_ledger_id(state.metadata)))

    async def _prepared(self, fill: Callable[..., None], *arguments: object) -> None:
        disk, data_dir = self._disk, self._state.data_dir
        async with self._handover.using_swap:
            try:
                await disk.run(swaps.prepare, disk, data_dir)
                await disk.run(fill, *arguments)
            except BaseException:
                with trio.CancelScope(shield=True):
                    await disk.run(swaps.discard, disk, data_dir)
                raise

    def _fill(self, manifest: Manifest, source: str) -> None:
        disk, data_dir = self._disk, self._state.data_dir
        needed, free = manifest.bytes + FREE_BYTES_MIN, disk.free_bytes(data_dir)
        if free < needed:
            raise Conflict(
                f"{data_dir}: {free >> 20} MiB are free, and the restore needs {needed >> 20} MiB beside the "
                "present state; free some space"
            )
        copy_checked(disk, manifest, source, swaps.incoming(data_dir))

    def _check_swaps(self) -> None:
        if not self._allows_swaps:
            raise NotAllowed(
                "a restore or a reset replaces all data, and is only done where the broker was started with "
                "--chaos; without it stop the broker, and start one with --data-dir on a copy of the "
                "snapshot's directory 'data'"
            )
        self._check_directories()

    def _check_directories(self) -> None:
        record = recorded_directories(self._state.metadata)
        if record is not None and DirectoryLists(tuple(record.journals), tuple(record.ledgers)) != (
            DirectoryLists()
        ):
            raise Conflict(
                "this broker has journalDirectories or ledgerDirectories of its own, which snapshots do not "
                "cover: make a copy with 'geminga backup DIR', and start a broker on it"
            )

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if self._is_busy or self._handover.is_wanted:
            raise Conflict("another snapshot is saved or restored right now; ask again when it is done")
        self._is_busy = True
        try:
            yield
        finally:
            self._is_busy = False
