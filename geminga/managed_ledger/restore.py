"""Bringing metadata and bookie into agreement again, where the right metadata is lost: by an operator's
command, with the broker stopped.

The bookie's files decide what there is. Data ledgers without a record come back under the topic that the
files name; what a topic's record promises and the bookie does not have is taken out of it, and named. A
subscription goes back to the newest state that its record leads to, so it may see messages again, and never
misses one: nothing in a cursor ledger says which subscription it is of, so those without a record stay aside,
and so do the buckets of the delayed index, which is rebuilt from the backlog.

Subscriptions may be lost with the metadata, and those that are left may stand behind what comes back. So a
topic that gets ledgers back gets a subscription too, `HOLDER`, before its first entry: without it the next
trimming, or the deletion of unused topics, would take what was just restored. If the metadata lacks changes,
every topic gets one: policies and requests to compact may be lost then, which kept entries as well.

Each topic changes in one transaction. A crash leaves some topics done; doing it again does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from geminga.errors import InvalidName
from geminga.managed_ledger.cursor.bucket_properties import named_ledgers
from geminga.managed_ledger.cursor.system_cursors import HOLDER
from geminga.metadata import records
from geminga.metadata.node import MUST_NOT_EXIST, Delete, Put
from geminga.metadata.records import (
    CursorRecord,
    LedgerIdsRecord,
    LedgerInfo,
    LedgerRecord,
    ManagedLedgerRecord,
    NamespaceRecord,
    PartitionedTopicRecord,
    TenantRecord,
)
from geminga.names import TopicName

if TYPE_CHECKING:
    from geminga.metadata.store import MetadataStore


V = TypeVar("V", int, str)


class Missing(NamedTuple):
    """Entries that were confirmed and are not there: `first` to `last` of a ledger."""

    ledger_id: int
    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.first} to {self.ledger_id}:{self.last}"


class StoredLedgers(NamedTuple):
    """What the bookie has."""

    entries: Callable[[int], int]
    """Of a ledger: one more than the id of the last entry that is there; 0 if it is deleted or unknown."""
    last_id: Callable[[int], int]
    """Of a ledger: its last entry's id as the index has it, there or not; -1 if there is none."""
    size_bytes: Callable[[int], int]
    missing: Callable[[int, int], Sequence[tuple[int, int]]]
    """Of a ledger with so many confirmed entries: ranges that are nowhere."""


class Merged(NamedTuple):
    """A topic's new record, and what it leaves out."""

    record: ManagedLedgerRecord
    dropped: list[int]
    missing: list[Missing]
    holder: str = ""
    """The subscription that was made to keep the entries."""


def topic_of(text: str) -> TopicName | None:
    """The topic that a file names by its metadata path or by its name; None if it is neither."""
    try:
        if text.startswith(f"{records.MANAGED_LEDGERS}/"):
            return records.topic_of(text)
        return TopicName.parse(text) if "://" in text else None
    except InvalidName:
        return None


def merged(
    record: ManagedLedgerRecord, added: Sequence[int], stored: StoredLedgers, *, now_ms: int
) -> Merged:
    """The record with the ledgers that the bookie has, oldest first. Ledgers that hold nothing go, but for an
    open newest one; all others are closed. Of a terminated topic nothing goes.
    """
    infos = {info.ledger_id: info for info in record.ledgers}
    infos |= {ledger_id: LedgerInfo(ledger_id=ledger_id) for ledger_id in added}
    newest = max(infos, default=-1)
    ledgers: list[LedgerInfo] = []
    dropped: list[int] = []
    missing: list[Missing] = []
    for ledger_id, info in sorted(infos.items()):
        entries = stored.entries(ledger_id)
        of_ledger = stored.missing(
            ledger_id, info.entries if info.closed_ms else stored.last_id(ledger_id) + 1
        )
        missing += [Missing(ledger_id, first, last) for first, last in of_ledger]
        # A terminated topic's last position is part of its contract with readers, whatever became of its
        # entries.
        if (record.terminated is not None and ledger_id not in added) or (
            entries == info.entries and info.closed_ms
        ):
            ledgers.append(info)
        elif entries:
            size = stored.size_bytes(ledger_id)
            ledgers.append(
                LedgerInfo(
                    ledger_id=ledger_id, entries=entries, size_bytes=size, closed_ms=info.closed_ms or now_ms
                )
            )
        # A topic's newest ledger has its record before its first entry, so an empty one is no loss.
        elif ledger_id == newest and not info.closed_ms and stored.last_id(ledger_id) < 0:
            ledgers.append(info)  # just made
        else:
            dropped.append(ledger_id)
    changed = ManagedLedgerRecord(
        ledgers=ledgers,
        terminated=record.terminated,
        properties=record.properties,
        created_ms=record.created_ms or now_ms,
        holds_delayed=record.holds_delayed,
    )
    return Merged(changed, dropped, missing)


class Restorer:
    """Writes the metadata of a stopped broker. `store.run` must be running, and no other process writes."""

    def __init__(self, store: MetadataStore, stored: StoredLedgers, *, cluster: str, now_ms: int) -> None:
        self._store = store
        self._stored = stored
        self._cluster = cluster
        self._now_ms = now_ms

    async def give_ids_behind(self, last_id: int) -> None:
        """Never hand out an id up to this one again; durable on return."""
        path = LedgerIdsRecord.path
        held = self._store.get(path)
        next_id = records.decode(LedgerIdsRecord, held.value, path).next_id if held is not None else 0
        # Before anything else: an id given a second time would mix two topics' entries in one ledger.
        if last_id >= next_id:
            await self._store.put(path, records.encode(LedgerIdsRecord(next_id=last_id + 1)))

    def topics(self) -> set[str]:
        """The paths of all topics that own a recorded ledger."""
        found = set()
        for component in self._store.children(records.LEDGERS):
            path = f"{records.LEDGERS}/{component}"
            held = self._store.get(path)
            if held is not None:
                found.add(records.decode(LedgerRecord, held.value, path).topic)
        return {path for path in found if path.startswith(f"{records.MANAGED_LEDGERS}/")}

    async def restore(
        self,
        path: str,
        added: Sequence[int],
        deleted: Sequence[int],
        *,
        is_cursor_lost: bool = False,
        lacks_changes: bool = False,
    ) -> Merged | None:
        """Bring data ledgers back under the topic, and take out of it what is not there; durable on return.
        `deleted` are ledgers that its records name and the bookie has deleted. With `is_cursor_lost` a
        subscription of the topic may be without its record; with `lacks_changes` anything that kept entries
        may be lost. None if nothing changed, and all that was confirmed is there.
        """
        held = self._store.get(path)
        if held is None and not added:
            return None
        record = records.decode(ManagedLedgerRecord, held.value, path) if held else ManagedLedgerRecord()
        result = merged(record, added, self._stored, now_ms=self._now_ms)
        # Deleted on the bookie means deleted on request: a record that still names it is older than the
        # deletion.
        gone = {*deleted, *result.dropped}
        properties = without_ledgers(result.record.properties, gone)
        changed = ManagedLedgerRecord(
            ledgers=result.record.ledgers,
            terminated=result.record.terminated,
            properties=properties,
            created_ms=result.record.created_ms,
            holds_delayed=result.record.holds_delayed,
        )
        puts = self._cursors_without(path, gone)
        if held is None or changed != record:
            puts.append(Put(path, records.encode(changed), MUST_NOT_EXIST if held is None else held.version))
        returned = sorted({*added} - gone)
        if changed.ledgers and (returned or is_cursor_lost or lacks_changes):
            is_new = bool(returned) or lacks_changes
            result = result._replace(holder=self._free_holder(path, is_new=is_new))
            if result.holder:
                # At the very beginning, since what the lost subscriptions had consumed is not known.
                first = CursorRecord(mark_delete=(changed.ledgers[0].ledger_id, -1), created_ms=self._now_ms)
                cursor_path = records.cursor_path(path, result.holder)
                puts.append(Put(cursor_path, records.encode(first), MUST_NOT_EXIST))
        if added:
            puts += self._parents(records.topic_of(path))
        for ledger_id in returned:
            of_ledger = LedgerRecord(topic=path, purpose="data", created_ms=self._now_ms)
            puts.append(Put(records.ledger_path(ledger_id), records.encode(of_ledger)))
        paths = map(records.ledger_path, sorted(gone))
        deletes = [Delete(each) for each in paths if self._store.get(each) is not None]
        if puts or deletes:
            # One transaction for a topic: after a crash it is either restored or as it was, and the command
            # can be repeated.
            await self._store.transact(puts, deletes)
        return result if puts or deletes or result.missing else None

    def _free_holder(self, path: str, *, is_new: bool) -> str:
        """A name that no cursor of the topic has. Unless `is_new` an older holder is enough: ""."""
        taken = {records.cursor_of(component) for component in self._store.children(path)}
        # A second restore brings other ledgers back; the first holder may have been moved past them by then.
        if HOLDER in taken and not is_new:
            return ""
        names = (HOLDER if number == 1 else f"{HOLDER}-{number}" for number in range(1, len(taken) + 2))
        return next(name for name in names if name not in taken)

    def _cursors_without(self, path: str, gone: set[int]) -> list[Put]:
        puts = []
        for component in self._store.children(path):
            cursor_path = f"{path}/{component}"
            held = self._store.get(cursor_path)
            if held is None:
                continue
            record = records.decode(CursorRecord, held.value, cursor_path)
            changed = CursorRecord(
                mark_delete=record.mark_delete,
                # Back to the position in the record: redelivers what was acknowledged since it was written,
                # and loses nothing.
                cursor_ledger_id=-1 if record.cursor_ledger_id in gone else record.cursor_ledger_id,
                properties=without_ledgers(record.properties, gone),
                subscription_properties=record.subscription_properties,
                created_ms=record.created_ms,
            )
            if changed != record:
                puts.append(Put(cursor_path, records.encode(changed), held.version))
        return puts

    def _parents(self, name: TopicName) -> list[Put]:
        """Tenant, namespace and partitioned topic, where they are not there."""
        tenant = TenantRecord(admin_roles=[], allowed_clusters=[self._cluster])
        # With the defaults of a new tenant or namespace: policies were in the lost metadata, and no file
        # repeats them.
        wanted: list[tuple[str, records.Record]] = [
            (records.tenant_path(name.tenant), tenant),
            (records.namespace_path(name.namespace), NamespaceRecord(created_ms=self._now_ms)),
        ]
        puts = [
            Put(path, records.encode(record), MUST_NOT_EXIST)
            for path, record in wanted
            if self._store.get(path) is None
        ]
        if name.is_partition:
            path = records.partitioned_topic_path(name.partitioned_name)
            held = self._store.get(path)
            old = records.decode(PartitionedTopicRecord, held.value, path) if held else None
            # At least as many partitions as were found. Fewer would hide restored entries from clients of the
            # topic.
            if old is None or old.partitions <= name.partition_index:
                record = PartitionedTopicRecord(
                    partitions=name.partition_index + 1,
                    properties=old.properties if old is not None else {},
                    created_ms=old.created_ms if old is not None else self._now_ms,
                )
                puts.append(Put(path, records.encode(record)))
        return puts


def without_ledgers(properties: Mapping[str, V], gone: set[int]) -> dict[str, V]:
    """The properties but for those of the delayed index that name one of these ledgers."""
    return {key: value for key, value in properties.items() if gone.isdisjoint(named_ledgers({key: value}))}
