"""What must hold of a topic after a crash: nothing live is lost, nothing dangles, nothing leaks.

The references are looked at before anything is repaired, as the crash has left them: what a record names is
on the bookie. The leaks are looked at after the sweep of the next start and the next garbage collection:
what nothing names is gone, from the bookie and from the metadata, and its bytes from the disk.
"""

from __future__ import annotations

from typing import Final

import trio

from geminga.errors import CorruptData, LedgerNotFound, TopicNotFound
from geminga.managed_ledger.cursor.bucket_properties import DELAYED_PREFIX
from geminga.metadata import records
from geminga.metadata.records import CursorRecord, LedgerRecord, ManagedLedgerRecord
from geminga.metadata.store import MetadataStore
from geminga.tracker.format.bucket_format import decode_directory, directory_pieces
from geminga.tracker.format.stored_bucket import range_of_key
from simulation.bookie.sim_ledger import Broken, promise
from simulation.topic.life import TopicLife
from simulation.topic.truth import due_ms
from simulation.topic.world import DIRECTORY, PATH, SMALL_TOPIC, Stores, TopicWorld, sweep

LATER_MS: Final = 90 * 24 * 3_600_000
"""When all is due."""


def check(world: TopicWorld) -> None:
    """Open what a crash has left, compare, and publish; lose power again; open, consume all, and delete it.
    Raises `Broken`, or whatever comes out of rooms that should have opened.
    """
    _live(world, _compare)
    world.crash("drop")
    _live(world, _use_up)


def _live(world: TopicWorld, look: object) -> None:
    async def live(world: TopicWorld) -> None:
        async with world.stores(close=look is _use_up) as stores, trio.open_nursery() as nursery:
            promise(
                not stores.bookie.recovery.damages, f"a crash looks like damage: {stores.bookie.recovery}"
            )
            await check_references(stores)
            await sweep(stores)
            await check_leaks(stores)
            life = TopicLife(world, stores, nursery)
            await look(life)  # type: ignore[operator]
            nursery.cancel_scope.cancel()

    promise(world.run(live), "there is power")


async def _compare(life: TopicLife) -> None:
    if await _load(life):
        await _recover_delays(life)
        if not life.ledger.terminated:
            fresh = await life.publish(3)
            promise(fresh[0].ledger_id not in life.truth.may_go, "a ledger id was used twice")


async def _load(life: TopicLife) -> bool:
    """False if the topic is gone, as it may be."""
    truth = life.truth
    if truth.exists == "no":
        promise(life.metadata.get(PATH) is None, "a deleted topic is back")
    existed = truth.exists
    try:
        await life.load(create=False)
    except TopicNotFound:
        promise(existed != "yes", "the topic is lost")
        truth.deleted()
        await _check_nothing_left(life)
        return False
    return True


async def _recover_delays(life: TopicLife) -> None:
    """Every index whose buckets somebody names."""
    if _named_buckets(life.ledger.internal_properties):
        for name in life.ledger.cursors:
            await life.delay(name, is_shared=True)
    else:
        for name, cursor in life.ledger.cursors.items():
            if _named_buckets(cursor.properties):
                await life.delay(name)


async def _use_up(life: TopicLife) -> None:
    """All that is left is consumed, the delayed entries when they are due; then trimming leaves one ledger,
    and deleting the topic leaves nothing.
    """
    if not await _load(life):
        return
    await _recover_delays(life)
    await life.pass_ms(LATER_MS)
    for name in list(life.ledger.cursors):
        if name in life.delays:
            delay = life.delays[name]
            due = await delay.take_due()
            promise(len(due) == len(set(due)), f"{name}: an entry was delivered twice")
            life.acknowledge(name, due)
        else:
            life.acknowledge(name, life.truth.up_to(life.ledger.last_confirmed))
        life.acknowledge(name, [place for place, body in life.truth.receipts.items() if not due_ms(body)])
        left = life.ledger.cursors[name].backlog_entries()
        promise(not left, f"{name}: {left} entries were not delivered")
        if name in life.delays:
            await life.delays[name].settled()
    await life.trim()
    kept = [info.ledger_id for info in life.ledger.ledgers]
    promise(len(kept) == 1 or not life.ledger.cursors, f"ledgers {kept} are consumed and were not trimmed")
    await life.flush()
    await life.bookie.collect_garbage()
    _check_recorded(life.metadata, life.bookie.inventory.ledgers())
    await life.delete()
    await _check_nothing_left(life)


async def _check_nothing_left(life: TopicLife) -> None:
    await life.flush()
    await life.bookie.collect_garbage()
    await life.flush()
    promise(
        not life.bookie.inventory.ledgers(),
        f"the topic is gone, and ledgers {life.bookie.inventory.ledgers()} are not",
    )
    recorded = life.metadata.children(records.LEDGERS)
    promise(not recorded, f"the topic is gone, and records of ledgers {recorded} are not")
    promise(not life.metadata.children(PATH), "the topic is gone, and its cursors are not")
    if life.bookie.inventory.keeps_logs:
        # A start that cannot read what a log ends with keeps all logs, until an operator has looked.
        promise(life.world.read_failed(), "every log can be read, and logs are kept from deletion")
        return
    logs = life.world.disk.list(f"{DIRECTORY}/entry-logs")
    promise(len(logs) <= 1, f"no ledger lives, and {len(logs)} entry logs are left")


# -- references -----------------------------------------------------------------------------------------


async def check_references(stores: Stores) -> None:
    """Each ledger that a record names has a record of its own, and on the bookie what it is named for."""
    bookie, metadata = stores
    for component in metadata.children(PATH.rpartition("/")[0]):
        path = f"{PATH.rpartition('/')[0]}/{component}"
        stored = metadata.get(path)
        if stored is not None:
            topic = records.decode(ManagedLedgerRecord, stored.value, path)
            for info in topic.ledgers:
                _need_record(metadata, info.ledger_id, "data")
                last = bookie.last_entry_id(info.ledger_id)
                kept = not info.closed_ms or last == info.entries - 1
                promise(
                    kept,
                    f"ledger {info.ledger_id} is said to have {info.entries} entries, its last one is {last}",
                )
            await _check_buckets(stores, topic.properties)
        for name in metadata.children(path):
            promise(stored is not None, f"cursor {name} belongs to no topic")
            await _check_cursor(stores, f"{path}/{name}")


async def _check_cursor(stores: Stores, path: str) -> None:
    stored = stores.metadata.get(path)
    assert stored is not None
    record = records.decode(CursorRecord, stored.value, path)
    if record.cursor_ledger_id >= 0:
        _need_record(stores.metadata, record.cursor_ledger_id, "cursor")
        last = stores.bookie.last_entry_id(record.cursor_ledger_id)
        promise(last >= 0, f"{path} names cursor ledger {record.cursor_ledger_id}, which has nothing")
    await _check_buckets(stores, record.properties)


def _named_buckets(properties: object) -> dict[str, int]:
    return {
        key: int(value)
        for key, value in dict(properties).items()  # type: ignore[call-overload]
        if key.startswith(DELAYED_PREFIX)
    }


async def _check_buckets(stores: Stores, properties: object) -> None:
    """Each named bucket was written to its end and can be read."""
    for key, ledger_id in _named_buckets(properties).items():
        _need_record(stores.metadata, ledger_id, "bucket")
        last = stores.bookie.last_entry_id(ledger_id)
        promise(last >= 0, f"{key} names ledger {ledger_id}, which has nothing")
        try:
            entries: list[bytes] = []
            while len(entries) <= last:
                entries += await stores.bookie.read(ledger_id, len(entries), last, bytes_max=1 << 20)
            directory = decode_directory(entries[last + 1 - directory_pieces(entries[last]) :])
            covered = range_of_key(key)
            promise(covered is not None, f"{key} names no bucket")
            assert covered is not None
            spans = covered.first_code <= directory.first_code, directory.last_code <= covered.last_code
            promise(all(spans), f"{key} is another one")
        except (CorruptData, LedgerNotFound) as error:
            raise Broken(f"{key} names ledger {ledger_id}, which cannot be read: {error}") from error


def _need_record(metadata: MetadataStore, ledger_id: int, purpose: str) -> None:
    path = records.ledger_path(ledger_id)
    stored = metadata.get(path)
    promise(stored is not None, f"ledger {ledger_id} ({purpose}) is named and has no record")
    assert stored is not None
    record = records.decode(LedgerRecord, stored.value, path)
    promise((record.topic, record.purpose) == (PATH, purpose), f"ledger {ledger_id} is another one's")


# -- leaks ----------------------------------------------------------------------------------------------


async def check_leaks(stores: Stores) -> None:
    """After the sweep and a collection: no ledger that no record names, no record that nothing names."""
    await stores.bookie.collect_garbage()
    _check_recorded(stores.metadata, stores.bookie.inventory.ledgers())


def _check_recorded(metadata: MetadataStore, held: set[int]) -> None:
    recorded = {records.ledger_id_of(component) for component in metadata.children(records.LEDGERS)}
    promise(held <= recorded, f"the bookie has ledgers {held - recorded} that no record knows")
    named = _named(metadata)
    promise(recorded <= named, f"ledgers {recorded - named} have records, and nothing names them")


def _named(metadata: MetadataStore) -> set[int]:
    named: set[int] = set()
    stored = metadata.get(PATH)
    if stored is not None:
        topic = records.decode(ManagedLedgerRecord, stored.value, PATH)
        named.update(info.ledger_id for info in topic.ledgers)
        named.update(_named_buckets(topic.properties).values())
    for component in metadata.children(PATH):
        path = f"{PATH}/{component}"
        cursor = metadata.get(path)
        assert cursor is not None
        record = records.decode(CursorRecord, cursor.value, path)
        named.update({record.cursor_ledger_id, *_named_buckets(record.properties).values()})
    return named


__all__ = ["SMALL_TOPIC", "check", "check_leaks", "check_references"]
