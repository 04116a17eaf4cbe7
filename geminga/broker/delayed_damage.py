"""Breaking buckets on purpose, for those who want to see what happens then. Nothing of this is told to the
index: it finds out as it would with a disk that lies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from geminga.broker.delayed_statistics import Damage
from geminga.errors import PeerError

if TYPE_CHECKING:
    from geminga.broker.index_home import IndexHome
    from geminga.tracker.bucket_store import StoredBucket


class NothingLeft(PeerError):
    """An earlier damage took the bucket's last entry, and the index has not met it yet."""

    http_status = 409


async def damage_bucket(home: IndexHome, how: Damage, ledger_id: int | None) -> int | None:
    """Delete a bucket's ledger, or put one in its place that has only the first half of its entries, or a
    flipped bit in the segment that will be read next. Returns the ledger (the new one); None: no such bucket.

    ledger_id None: the first bucket. `NothingLeft`, StorageError.
    """
    keeper = home.keeper
    stored = next((b for b in keeper.stored if ledger_id in (None, b.ledger_id)), None) if keeper else None
    if stored is None:
        return None
    if how == "lose":
        await home.store.delete(stored.ledger_id)
        return stored.ledger_id
    entries = await home.store.read_all(stored.ledger_id)
    if not entries:
        raise NothingLeft(f"the bucket in ledger {stored.ledger_id} has nothing left to damage")
    if how == "truncate":
        entries = entries[: len(entries) // 2]
    else:
        number = _next_read(home, stored, len(entries))
        damaged = bytearray(entries[number])
        damaged[len(damaged) // 2] ^= 1
        entries = [*entries[:number], bytes(damaged), *entries[number + 1 :]]
    await _put_in_place(home, stored, entries)
    return stored.ledger_id


def _next_read(home: IndexHome, stored: StoredBucket, entries: int) -> int:
    """The first segment that is not in memory; the directory if there is none."""
    for known, bucket in home.index.buckets.items():
        if known is stored:
            return min(bucket.next_segment + len(bucket.loaded), entries - 1)
    return entries - 1


async def _put_in_place(home: IndexHome, stored: StoredBucket, entries: list[bytes]) -> None:
    assert home.keeper is not None
    assert home.owner is not None
    old = stored.ledger_id
    async with home.store.writing() as writer:
        await writer.append(entries)
        await writer.finish()
        writer.naming = True
        await home.owner.swap({stored.key: writer.ledger_id}, {stored.key: old})
    serving = home.keeper.buckets.serving
    if serving.pop(old, None) is not None:
        stored.ledger_id = writer.ledger_id
        serving[stored.ledger_id] = stored
    await home.store.delete(old)
