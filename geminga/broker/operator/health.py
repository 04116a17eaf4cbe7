"""Checks the broker's health by publishing a message and reading it back, as Pulsar's health check does.

The message goes through the journal, to a ledger of its own that belongs to no topic, so no list shows it.
The ledger is deleted when it has `ENTRIES_MAX` messages, when the broker stops, and after a crash together
with other orphans. Simultaneous requests share one round trip, and an answer is reused for a second.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec
import trio

from geminga.errors import GemingaError, StorageError
from geminga.metadata import records
from geminga.metadata.node import MUST_NOT_EXIST
from geminga.metadata.records import LedgerRecord

if TYPE_CHECKING:
    from geminga.bookie.running.bookie import Bookie
    from geminga.bookie.running.ledger_writer import LedgerWriter
    from geminga.broker.topic.rooms import Rooms

FRESH_S = 1.0
"""How long an answer is reused."""
ROUND_TRIP_S_MAX = 1.5
"""A message that is not back by then makes the broker unhealthy, so that the answer comes within two
seconds.
"""
ENTRIES_MAX = 1000
TOPIC = "/health"
"""The topic in the record of the ledger: a name that no topic can have."""
BODY_BYTES = 16
LOSSES_MAX = 20
"""The limit of damages that an answer names."""


class HealthReport(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of `/geminga/health`."""

    status: str
    """"ok", or "unhealthy"; then `reasons` has causes and next steps."""
    reasons: list[str]
    checked_ms: int
    """Time of the check, ms since 1970."""
    losses: list[str] = []
    """Entries that this start did not find, or that were found damaged since, and what is kept because of it.
    The broker serves everything else, so it counts as healthy.
    """
    round_trip_ms: float | None = None
    """From the publish to the read; None: the message did not come back."""


def losses_of(bookie: Bookie, data_dir: str, lost_buckets: int) -> list[str]:
    """What was lost, and what is kept because files may be of several moments, with next steps; [] if there
    is nothing. `lost_buckets` is the number since the start.
    """
    report, counts = bookie.recovery, bookie.statistics()
    flags = f"--data-dir {shlex.quote(data_dir)}"
    look = (
        f"'geminga bookie verify {flags}' on the stopped broker lists it, and the log of the start names "
        "topics"
    )
    losses = [f"{damage}; {look}" for damage in report.damages[:LOSSES_MAX]]
    if report.logs_missing or report.logs_cut:
        losses.append(
            f"entry logs that are not there: {len(report.logs_missing)}, cut short: {len(report.logs_cut)}; "
            f"entries of them that are in no file: {report.entries_missing}; {look}"
        )
    elif report.entries_missing:
        losses.append(f"entries that files name and no file has: {report.entries_missing}; {look}")
    if counts.confirmed_missing:
        losses.append(
            f"entries that topics have confirmed and no file has: {counts.confirmed_missing}; 'geminga "
            "events --kind entries-missing' names them, and 'geminga topics skip' takes a subscription past "
            "them"
        )
    if lost_buckets:
        losses.append(
            f"buckets of the delayed index that were lost since the start: {lost_buckets}; their messages "
            "are read again from their topics, and none is lost: 'geminga events --kind "
            "bucket-lost' names them"
        )
    unhealed = counts.damaged_entries_found - counts.damaged_entries_healed
    if unhealed > 0:
        losses.append(f"entries that were found damaged since the start: {unhealed}; {look}")
    if counts.ledgers_aside:
        losses.append(
            f"ledgers without a record that are set aside: {counts.ledgers_aside}; 'geminga bookie "
            f"unrecorded list {flags}' on the stopped broker shows them"
        )
    if counts.keeps_logs:
        kept = f" ({counts.kept_logs} would be, {counts.kept_bytes >> 20} MiB)" if counts.kept_logs else ""
        losses.append(
            "a start found files of several moments (index, entry logs, journals), so no entry log from "
            f"before is deleted{kept}; if all is well, 'geminga bookie release {flags}' on the "
            "stopped broker ends that"
        )
    return losses


class HealthCheck:
    """The health check of one broker. Belongs to the event loop."""

    def __init__(
        self,
        rooms: Rooms,
        data_dir: str,
        gone: Callable[[], Awaitable[object]],
        lost_buckets: Callable[[], int] = lambda: 0,
    ) -> None:
        """`data_dir` is named in advice. `gone` returns what was removed while the broker runs, as text; ""
        if all files and directories exist. It may raise StorageError. `lost_buckets` returns how many buckets
        of the delayed index were lost since the start.
        """
        self.round_trips = 0
        self._rooms = rooms
        self._data_dir = data_dir
        self._gone = gone
        self._lost_buckets = lost_buckets
        self._report: HealthReport | None = None
        self._fresh_until_s = 0.0
        self._looking: trio.Event | None = None
        self._writer: LedgerWriter | None = None
        self._durable = trio.Event()
        self._durable_entry = -1
        self._failure: StorageError | None = None
        self._closed = False

    async def __call__(self) -> HealthReport:
        """The current state, at most `FRESH_S` old. Never raises for an unhealthy broker. After cancelling,
        the next request repeats the check.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        while self._report is None or trio.current_time() >= self._fresh_until_s:
            if self._looking is not None:
                await self._looking.wait()
                continue
            self._looking = trio.Event()
            try:
                self._report = await self._look()
                self._fresh_until_s = trio.current_time() + FRESH_S
            finally:
                self._looking.set()
                self._looking = None
        return self._report

    async def close(self) -> None:
        """Delete the ledger; no message is published after this. Raises StorageError. Cancelling leaves the
        ledger to the next start.
        """
        self._closed = True
        if self._writer is not None:
            await self._delete(self._writer)
            self._writer = None

    async def _look(self) -> HealthReport:
        reasons, trip_ms = [], None
        clock = self._rooms.clock
        started_s = clock.monotonic_s()
        with trio.move_on_after(ROUND_TRIP_S_MAX) as limit:
            if gone := await self._what_is_gone():
                reasons.append(f"{gone} was removed, replaced or unmounted: put it back and start again")
            elif reason := self._rooms.bookie.read_only:
                reasons.append(f"nothing can be published: {reason}; free some space on that disk")
            else:
                try:
                    await self._round_trip()
                    trip_ms = round((clock.monotonic_s() - started_s) * 1000, 3)
                except GemingaError as error:
                    reasons.append(f"a message could not be published and read back: {error}")
        if limit.cancelled_caught:
            reasons.append(
                f"a message was not published and read back within {ROUND_TRIP_S_MAX:g} s: the disk is too "
                "slow, or has stopped"
            )
        return HealthReport(
            status="unhealthy" if reasons else "ok",
            reasons=reasons,
            checked_ms=clock.now_ms(),
            losses=losses_of(self._rooms.bookie, self._data_dir, self._lost_buckets()),
            round_trip_ms=trip_ms,
        )

    async def _what_is_gone(self) -> str:
        try:
            return str(await self._gone())
        except StorageError as error:
            return str(error)

    async def _round_trip(self) -> None:
        """Raises GemingaError if the message does not come back unchanged."""
        writer = await self._ready_writer()
        body = os.urandom(BODY_BYTES)
        entry_id = writer.append(body)
        self.round_trips += 1
        while self._durable_entry < entry_id:
            if self._failure is not None:
                raise self._failure
            self._durable = trio.Event()
            await self._durable.wait()
        found = await self._rooms.bookie.read(writer.ledger_id, entry_id, entry_id, bytes_max=BODY_BYTES)
        if found != [body]:
            raise StorageError(f"entry {entry_id} of ledger {writer.ledger_id} came back as another one")

    async def _ready_writer(self) -> LedgerWriter:
        old = self._writer
        if self._closed:
            raise StorageError("the broker is stopping")
        if old is not None and self._failure is None and old.next_entry_id < ENTRIES_MAX:
            return old
        rooms = self._rooms
        ledger_id = await rooms.ledger_ids.next()
        record = LedgerRecord(topic=TOPIC, purpose="data", created_ms=max(1, rooms.clock.now_ms()))
        await rooms.metadata.put(records.ledger_path(ledger_id), records.encode(record), MUST_NOT_EXIST)
        self._durable_entry, self._failure = -1, None
        self._writer = rooms.bookie.create_ledger(
            ledger_id, on_durable=self._on_durable, on_failed=self._on_failed, topic=TOPIC
        )
        if old is not None:
            await self._delete(old)
        return self._writer

    async def _delete(self, writer: LedgerWriter) -> None:
        writer.close()
        await self._rooms.bookie.delete_ledger(writer.ledger_id)
        await self._rooms.metadata.delete(records.ledger_path(writer.ledger_id))

    def _on_durable(self, last_entry_id: int) -> None:
        self._durable_entry = last_entry_id
        self._durable.set()

    def _on_failed(self, error: StorageError) -> None:
        self._failure = error
        self._durable.set()
