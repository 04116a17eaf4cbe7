"""Composition root: opens the rooms from the disk upward, owns their nurseries, closes them in reverse.

Two nested nurseries. The outer one (storage) is shielded: a stop cancels the inner one first (service:
listeners, connections, topics), then closes topics and persists cursors, and only then stops the journal and
the metadata writer. A failed disk ends the service at once, and `serve` raises `StorageError`.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import shlex
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import trio

from geminga.bookie.running.bookie import Bookie
from geminga.bookie.running.directory_cookies import claimed_by, has_bookie_files
from geminga.bookie.running.directory_lists import (
    DEFAULT,
    SYSTEMS_NAMES,
    DirectoryLists,
    absolute,
    lists_from,
)
from geminga.broker.connection.connection import Connections
from geminga.broker.flow.client_metadata import ClientMetadata
from geminga.broker.flow.outbox import Outgoing
from geminga.broker.flow.publish_memory import PublishMemory
from geminga.broker.flow.publish_rate import publish_limit
from geminga.broker.flow.read_memory import ReadMemory
from geminga.broker.flow.send_memory import SendMemory
from geminga.broker.flow.statistics import DiskStatistics
from geminga.broker.operator.health import HealthCheck
from geminga.broker.operator.view import Process, View
from geminga.broker.policies.namespaces import Namespaces
from geminga.broker.policies.policies import Policies
from geminga.broker.topic.rooms import Rooms
from geminga.broker.topic.topics import Topics
from geminga.clock import Clock, RealClock, VirtualClock
from geminga.config.config import Config
from geminga.config.memory_budget import memory_parts
from geminga.config.operator_token import NO_OPERATOR_TOKEN, OperatorToken
from geminga.delivery_log.delivery_log import DeliveryLog
from geminga.errors import GemingaError, ReadOnly, StorageError
from geminga.events.event_log import EventLog
from geminga.managed_ledger.chain.tail_cache import TailCache
from geminga.managed_ledger.orphans import sweep_orphan_ledgers
from geminga.managed_ledger.unrecorded import set_aside_unrecorded
from geminga.metadata.change_note import ChangeNote
from geminga.metadata.instance import (
    ForeignDirectory,
    check_instance,
    new_start_id,
    record_starts,
    starts_of,
    with_new_start,
)
from geminga.metadata.ledger_ids import LedgerIds
from geminga.metadata.records import InstanceRecord
from geminga.metadata.space_reserve import SpaceReserve
from geminga.metadata.store import MetadataStore
from geminga.server import listener
from geminga.server.admission import Handler, Visit
from geminga.server.backup import Backup
from geminga.server.bookie_opening import open_bookie, open_database
from geminga.server.descriptors import Division, divide, raise_files_max, warn_if_few
from geminga.server.doors import Doors, bind_all
from geminga.server.failure import Failure, storage_error
from geminga.server.fault_parts import (
    DAMAGED,
    FAULTS,
    bucket_stores_of,
    check_clock,
    fault_parts,
    faults_of,
    faulty_admin,
    faulty_wire,
    points_of,
    put_in_force,
    wall_clock,
)
from geminga.server.file_watch import FileWatch
from geminga.server.loop_edges import LoopEdges
from geminga.server.memory_report import MemoryMeter
from geminga.server.metadata_check import METADATA, aside_text, check_metadata
from geminga.server.room_settings import (
    bookie_settings,
    broker_settings,
    clock_kind,
    default_policies,
    delay_settings,
    delivery_log_settings,
    host_names,
    ledger_settings,
    listen_settings,
    service_url,
    subscription_settings,
    tail_cache_settings,
)
from geminga.server.snapshots.handover import Handover
from geminga.server.snapshots.swap import is_interrupted
from geminga.server.start_space import check_space
from geminga.storage.disk import Disk, RealDisk
from geminga.storage.rocksdb import BlockCache

if TYPE_CHECKING:
    from geminga.broker.flow.snapshot_reports import SnapshotCalls
    from geminga.chaos.rules.faults import Faults
    from geminga.chaos.rules.rule import Rule
    from geminga.delivery_log.shipping import Shipping

log = logging.getLogger("geminga.server")

LOCK, BOOKIE, EVENTS = "lock", DEFAULT, "events"
"""Names inside a data directory, besides `METADATA`."""
STOP_SECONDS = 10.0
"""The limit of an orderly stop; the recovery of the next start does the rest."""


class Addresses(NamedTuple):
    """The ports on which the broker listens."""

    binary_port: int
    web_port: int


async def serve(
    config: Config,
    *,
    data_dir: str,
    dropped_log_lines: Callable[[], int] = lambda: 0,
    operator_token: OperatorToken = NO_OPERATOR_TOKEN,
    reopened: Callable[[], None] = lambda: None,
    wipes_data: bool = False,
    fault_rules: Sequence[Rule] = (),
    task_status: trio.TaskStatus[Addresses] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a broker on `data_dir` until cancelled; then stop in order and return.

    `dropped_log_lines` returns, for the metrics, the number of dropped log lines. `operator_token` opens the
    operator's routes beyond loopback. `task_status` gets the ports once both answer; `reopened` is called
    each time that they answer again, from another state. `wipes_data`: begin with an empty directory.
    `fault_rules` are in force before anything of it is opened; they need `--chaos`.

    Raises `OSError` when a port is taken, `StorageError` when the directory cannot be used or its disk fails
    while running.
    """
    # Ports are bound before the data directory is touched: if one is taken, no recovery has run for nothing.
    files_max = raise_files_max()
    division = _division(config, files_max)
    warn_if_few(files_max, division)
    faults = faults_of(config)
    handover = Handover(data_dir, points_of(faults))
    process = functools.partial(
        Process, dropped_log_lines=dropped_log_lines, operator_token=operator_token, faults=faults
    )
    async with _cancels(handover):
        with contextlib.ExitStack() as listening, trio.CancelScope(shield=True):
            sockets = bind_all(listening, listen_settings(config))
            disk = RealDisk()
            # Before the first byte is written, the lock's included.
            check_space(disk, data_dir, _lists_of(config, data_dir))
            disk.make_directory(data_dir)
            if not is_interrupted(disk, data_dir):
                _refuse_foreign(disk, data_dir)
            listening.callback(disk.lock(data_dir).release)
            await handover.settle()
            if wipes_data:
                from geminga.server.wiping import wipe  # no other start needs it

                wiped = await disk.run(wipe, disk, data_dir)
                log.warning("--wipe-data: deleted all data in %s: %s", data_dir, ", ".join(wiped) or "none")
            await disk.run(put_in_force, faults, fault_rules, disk, data_dir)
            ready: Callable[[Addresses], None] = task_status.started
            while True:
                undone = ""
                doors = Doors(sockets, division)
                try:
                    await _serve(config, data_dir, handover, process, doors, faults, ready)
                except (StorageError, BaseExceptionGroup) as failure:
                    error = storage_error(failure)
                    if handover.opening is None or error is None:
                        raise
                    undone = str(error)
                ready = _call_without(reopened)
                if undone:
                    await handover.undo(undone)
                elif not await handover.next_state():
                    return


@contextlib.asynccontextmanager
async def _cancels(scope: Handover) -> AsyncIterator[None]:
    """Cancel only `scope` when the caller is cancelled. Shielded work inside ends by itself."""

    async def watch() -> None:
        try:
            await trio.sleep_forever()
        finally:
            scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        yield
        nursery.cancel_scope.cancel()


def _division(config: Config, files_max: int) -> Division:
    return divide(
        files_max,
        journals=max(1, len(config.journal_directories)),
        ledger_directories=max(1, len(config.ledger_directories)),
        writes_delivery_log=bool(config.geminga_delivery_log_directory),
    )


def _call_without(call: Callable[[], None]) -> Callable[[Addresses], None]:
    return lambda addresses: call()


async def _serve(
    config: Config,
    data_dir: str,
    handover: Handover,
    process_of: Callable[..., Process],
    doors: Doors,
    faults: Faults | None,
    ready: Callable[[Addresses], None],
) -> None:
    """Open the data directory, serve until `handover` ends the service, and close it."""
    disk, metadata_of, index_of = fault_parts(faults)
    stop = handover.next_scope()
    with contextlib.ExitStack() as held:
        lists = _lists_of(config, data_dir)
        check = functools.partial(check_metadata, cluster=config.cluster_name)
        # Read-only and before anything is opened for writing. A start on an older copy of the metadata once
        # took all newer ledgers for deleted, and removed messages that had receipts.
        await disk.run(check, disk, data_dir, lists)
        # One cache for metadata and index together: the budget has one part for both.
        block_cache = BlockCache(memory_parts(config).block_cache)
        metadata_values = await disk.run(
            open_database, disk, os.path.join(data_dir, METADATA), block_cache, held
        )
        failure = Failure(stop)
        async with trio.open_nursery() as storage:
            # A smaller share of the bookie's reserve than flushes leave: deletions and cursors come last.
            reserved_bytes = bookie_settings(config).disk_free_bytes_min // 8
            reserve = SpaceReserve(disk, metadata_values.path, reserved_bytes)
            metadata = metadata_of(metadata_values, reserve)
            await storage.start(failure.watch, metadata.run)
            handover.passed("metadata-opened")
            # Before the bookie is opened: its directories have cookies with the id of this instance.
            instance = await check_instance(
                metadata,
                cluster=config.cluster_name,
                clock=handover.clock_kind(clock_kind(config)),
                now_ms=RealClock().now_ms(),
            )
            await handover.adapt(metadata)
            clock = await _clock(instance, metadata, faults, held)
            check_clock(faults, clock)
            events = EventLog(disk, os.path.join(data_dir, EVENTS), clock)
            if faults is not None:
                faults.tell(events.record)
            await storage.start(events.run)
            bookie, indexes, directories = await open_bookie(
                config, disk, data_dir, metadata, instance, block_cache, held, index_of
            )
            handover.passed("journal-recovered")
            # Behind the opening of the bookie, which has claimed and locked the directory.
            starts = with_new_start(starts_of(metadata), new_start_id(), metadata_values.found_changes)
            note = ChangeNote(disk, absolute(data_dir, lists.journals[0]), instance.instance_id, starts)
            held.callback(note.close)
            metadata.call_on_synced(lambda: note.write(metadata_values.synced_changes))
            # Durable before the note says it: a note with a start that the metadata does not know is refused.
            await record_starts(metadata, starts)
            handover.passed("start-recorded")
            for index in indexes:
                await storage.start(failure.watch, index.run)
            await storage.start(failure.watch, bookie.run)
            # A file or directory that is removed under the broker goes on taking writes, and receipts,
            # without a name.
            watched = [os.path.join(data_dir, METADATA), *directories]
            watch = FileWatch(disk, watched, bookie, (metadata_values, *indexes))
            await storage.start(failure.watch, watch.run)
            bookie.call_on_space(
                lambda why: events.record("disk-read-only" if why else "disk-writable", text=why)
            )
            aside = await set_aside_unrecorded(bookie, metadata)
            if aside:
                log.warning("%s", await disk.run(aside_text, disk, data_dir, lists, bookie, aside))
            elif count := len(bookie.inventory.aside()):
                log.warning(
                    "ledgers without a record that are set aside, neither served nor deleted: %d; with the "
                    "broker stopped, 'geminga bookie unrecorded list --data-dir %s' shows them",
                    count,
                    shlex.quote(data_dir),
                )
            if bookie.recovery.mismatch:
                events.record(
                    "files-mismatched",
                    text=bookie.recovery.mismatch,
                    counts={
                        "found": bookie.recovery.entries_found,
                        "missing": bookie.recovery.entries_missing,
                    },
                )
            await sweep_orphan_ledgers(bookie, metadata, events.record)
            handover.passed("ledgers-swept")
            rooms = await _rooms(config, clock, metadata, bookie, disk, faults, events)
            topics = Topics(rooms)
            if rooms.delivery_log is not None:
                await storage.start(failure.watch, rooms.delivery_log.run)
            # In the storage nursery: a stop cancels the service, and topics still have to close after that.
            await storage.start(topics.run)
            shipping = _shipping(config, rooms, topics, disk)
            if shipping is not None:
                await storage.start(failure.watch, shipping.run)
            memory = MemoryMeter(
                memory_parts(config),
                bookie,
                rooms,
                block_cache,
                (metadata_values, *indexes),
                topics,
            )
            backup = Backup(disk, data_dir, metadata, metadata_values, bookie, indexes)
            health = HealthCheck(rooms, data_dir, watch.gone, lambda: events.recorded["bucket-lost"])

            @functools.cache
            def snapshots() -> SnapshotCalls:
                from geminga.server.snapshots.snapshots import OpenState, Snapshots  # few brokers need it

                state = OpenState(data_dir, instance, clock, metadata, backup, topics.persist_cursors)
                return Snapshots(state, handover, allows_swaps=config.chaos_enabled)

            edges = LoopEdges(bookie.journals, rooms.outgoing, rooms.figures.turns, rooms.coalescing)
            # Before the first client: what it is told holds for good.
            storage.start_soon(await handover.commit(events.record))
            with stop, edges.followed():
                process = process_of(
                    memory,
                    memory.in_slices,
                    backup,
                    health,
                    snapshots=snapshots,
                    disk=functools.partial(disk.run, _disk_statistics, disk, data_dir, directories),
                    events=events,
                )
                # From here on a storage that lacks a descriptor waits for one, and idle connections are
                # closed for it. Before, no connection could give one back, and an error says so at once.
                disk.descriptors.begin(doors.make_room_soon())
                reserve.begin()
                await _listen(config, rooms, topics, process, doors, handover, memory, ready)
            if handover.is_last:
                doors.close()
            # The service has ended here: no client is left, so nothing is published while topics close.
            storage.start_soon(_end_waiting, disk)
            if shipping is not None:
                shipping.stop()
            # After a failure nothing is closed in order: each part would wait for the disk that has failed.
            if failure.error is None:
                with trio.move_on_after(STOP_SECONDS) as deadline:
                    # From above: cursors are persisted by closing topics, and flushed to files by closing the
                    # bookie.
                    with contextlib.suppress(ReadOnly):  # the next start deletes its ledger
                        await health.close()
                    await topics.close()
                    await _save_clock(clock, metadata)
                    await watch.end_if_gone()
                    await bookie.close()
                    if rooms.delivery_log is not None:
                        await rooms.delivery_log.close()
                    events.record("stopped")
                    await events.close()
                if deadline.cancelled_caught:
                    log.warning("stopped without closing everything; the next start recovers it")
            storage.cancel_scope.cancel()
        if failure.error is not None:
            await watch.write_again()
            raise failure.error


def _lists_of(config: Config, data_dir: str) -> DirectoryLists:
    return lists_from(data_dir, config.journal_directories, config.ledger_directories)


async def _clock(
    instance: InstanceRecord, metadata: MetadataStore, faults: Faults | None, held: contextlib.ExitStack
) -> Clock:
    if instance.clock == "real":
        return wall_clock(faults, held)
    # No other start needs these.
    from geminga.metadata.virtual_clock_state import restored_clock
    from geminga.units import time_text

    clock = await restored_clock(metadata)
    log.info("the clock of this data directory is virtual and shows %s", time_text(clock.now_ms()))
    return clock


async def _save_clock(clock: Clock, metadata: MetadataStore) -> None:
    """The next start goes on from what a virtual clock shows."""
    if isinstance(clock, VirtualClock):
        from geminga.metadata.virtual_clock_state import save_clock

        try:
            await save_clock(metadata, clock)
        except GemingaError as error:
            log.warning("where the clock stands is not saved: %s", error)


def _disk_statistics(disk: Disk, data_dir: str, directories: Sequence[str]) -> DiskStatistics:
    def share_free(directory: str) -> float:
        return disk.free_bytes(directory) / max(disk.total_bytes(directory), 1)

    fullest = min((data_dir, *directories), key=share_free)
    return DiskStatistics(
        data_directory=data_dir,
        fullest_directory=fullest,
        free_bytes=disk.free_bytes(fullest),
        total_bytes=disk.total_bytes(fullest),
    )


async def _end_waiting(disk: RealDisk) -> None:
    """Let the process stop even if the storage waits for a descriptor."""
    try:
        await trio.sleep(STOP_SECONDS)
    finally:
        disk.descriptors.stop()


def _refuse_foreign(disk: Disk, data_dir: str) -> None:
    """Raise ForeignDirectory for a directory with files that are not Geminga's."""
    # A wrong --data-dir (a home directory, say) would otherwise be filled with databases.
    # Events say nothing of what else should be there: `check_metadata` does, if anything else is.
    names = set(disk.list(data_dir)) - {LOCK, EVENTS, FAULTS, FAULTS + DAMAGED, *SYSTEMS_NAMES}
    if claimed_by(disk, data_dir, DirectoryLists()) or has_bookie_files(disk, os.path.join(data_dir, BOOKIE)):
        return  # `check_metadata` says what is missing
    if names and METADATA not in names:
        raise ForeignDirectory(
            f"{data_dir} is not empty and not a data directory of Geminga (it has {sorted(names)[0]!r}, "
            f"but no {METADATA!r}); name an empty or a new directory"
        )


async def _rooms(
    config: Config,
    clock: Clock,
    metadata: MetadataStore,
    bookie: Bookie,
    disk: Disk,
    faults: Faults | None,
    events: EventLog,
) -> Rooms:
    namespaces = Namespaces(metadata, clock, cluster=config.cluster_name)
    await namespaces.bootstrap()
    cache = tail_cache_settings(config)
    tail_cache = TailCache(
        cache.bytes_max, age_max_ms=cache.age_max_ms, backlogged_entries=cache.backlogged_entries
    )
    settings = broker_settings(config)
    parts = memory_parts(config)
    return Rooms(
        bookie=bookie,
        metadata=metadata,
        ledger_ids=LedgerIds(metadata),
        namespaces=namespaces,
        policies=Policies(metadata, namespaces, default_policies(config)),
        clock=clock,
        tail_cache=tail_cache,
        publish_memory=PublishMemory(parts.publish, bookie, tail_cache.append_room),
        send_memory=SendMemory(parts.outboxes),
        outgoing=Outgoing(),
        read_memory=ReadMemory(parts.reads),
        client_metadata=ClientMetadata(parts.client_metadata),
        settings=settings,
        publish_limit=publish_limit(settings.publish_rate.messages, settings.publish_rate.bytes),
        ledger_settings=ledger_settings(config),
        subscription_settings=subscription_settings(config),
        delay_settings=delay_settings(config),
        new_bucket_store=bucket_stores_of(faults),
        delivery_log=_delivery_log(config, disk, clock),
        record=events.record,
        passed=points_of(faults),
    )


def _delivery_log(config: Config, disk: Disk, clock: Clock) -> DeliveryLog | None:
    settings = delivery_log_settings(config)
    if settings is None:
        return None
    return DeliveryLog(
        settings.directory,
        disk,
        clock,
        interval_s=settings.interval_s,
        file_bytes_max=settings.file_bytes_max,
        total_bytes_max=settings.total_bytes_max,
        own_topic=settings.topic,
    )


def _shipping(config: Config, rooms: Rooms, topics: Topics, disk: Disk) -> Shipping | None:
    settings = delivery_log_settings(config)
    if settings is None or not settings.topic or rooms.delivery_log is None:
        return None
    from geminga.broker.topic.log_topic import DeliveryLogTopic  # most brokers have none
    from geminga.delivery_log.shipping import Shipping

    return Shipping(rooms.delivery_log, DeliveryLogTopic(settings.topic, rooms, topics), disk)


async def _listen(
    config: Config,
    rooms: Rooms,
    topics: Topics,
    process: Process,
    doors: Doors,
    handover: Handover,
    memory: MemoryMeter,
    ready: Callable[[Addresses], None],
) -> None:
    from geminga.admin.api.late import LateRouter
    from geminga.admin.http.connection import serve_http
    from geminga.admin.http.own_host import OwnHost

    binary_port = doors.binary[0].getsockname()[1]
    web_port = doors.web[0].getsockname()[1]

    def url_for(sock: socket.socket) -> str:
        return service_url(config, sock.getsockname()[0], binary_port)

    # A ledger id is used once for ever, also across starts: nothing else has to be stored for a unique
    # number.
    generation = await rooms.ledger_ids.next()
    connections = Connections(topics, rooms, service_url=url_for, generation=generation)
    view = View(rooms, topics, connections, config, binary_port, web_port, process, default_policies)

    async def serve_binary(sock: socket.socket, visit: Visit) -> None:
        await connections.serve(sock, visit.busy)

    application = faulty_admin(LateRouter(view), process.faults)
    names, bodies = host_names(config), memory.bodies

    web: list[tuple[socket.socket, Handler]] = []
    for sock in doors.web:
        own = OwnHost(names.own, listed=names.listed, is_loopback=listener.is_loopback(sock))
        web.append((sock, functools.partial(serve_http, application=application, own=own, bodies=bodies)))
    async with trio.open_nursery() as service:
        serve_client = faulty_wire(serve_binary, process.faults, service)
        binary = [(sock, serve_client) for sock in doors.binary]
        service.start_soon(doors.accept, service, binary, web, handover.accepting)
        service.start_soon(handover.end_when_wanted)
        # Ready means that a client can publish now: recovery is over, and both ports answer.
        memory.started()
        rooms.passed("ready")
        rooms.record("started")
        ready(Addresses(binary_port, web_port))
        # Only now: a start must not become longer with the number of topics.
        service.start_soon(topics.unloaded_topics.run)
        service.start_soon(topics.load_wanted, memory.has_room)
