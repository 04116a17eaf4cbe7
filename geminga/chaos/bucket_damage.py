"""Breaking buckets on purpose, for those who want to see what happens then. Nothing of this is told to the
index: it finds out as it would with a disk that lies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from geminga.errors import PeerError

if TYPE_CHECKING:
    from geminga.tracker.buckets.bucket_set import BucketSet
    from geminga.tracker.format.stored_bucket import StoredBucket
    from geminga.tracker.index.index import DelayedIndex

Damage = Literal["lose", "truncate", "corrupt"]
"""Delete a bucket's ledger, cut off the second half of its entries, or flip a bit in one."""


class NothingLeft(PeerError):
    """An earlier damage took the bucket's last entry, and the index has not met it yet."""

    http_status = 409


async def damage_bucket(
    buckets: BucketSet, index: DelayedIndex, how: Damage, ledger_id: int | None
) -> int | None:
    """Delete a bucket's ledger, or put one in its place that has only the first half of its entries, or a
    flipped bit in the segment that will be read next. Returns the ledger (the new one); None: no such bucket.

    ledger_id None: the first bucket. `NothingLeft`, StorageError.
    """
    stored = next((bucket for bucket in buckets.stored if ledger_id in (None, bucket.ledger_id)), None)
    if stored is None:
        return None
    if how == "lose":
        await buckets.store.delete(stored.ledger_id)
        return stored.ledger_id
    entries = await buckets.store.read_all(stored.ledger_id)
    if not entries:
        raise NothingLeft(f"the bucket in ledger {stored.ledger_id} has nothing left to damage")
    if how == "truncate":
        entries = entries[: len(entries) // 2]
    else:
        number = _next_read(index, stored, len(entries))
        damaged = bytearray(entries[number])
        damaged[len(damaged) // 2] ^= 1
        entries = [*entries[:number], bytes(damaged), *entries[number + 1 :]]
    await _put_in_place(buckets, stored, entries)
    return stored.ledger_id


def _next_read(index: DelayedIndex, stored: StoredBucket, entries: int) -> int:
    """The first segment that is not in memory; the directory if there is none."""
    for known, bucket in index.buckets.items():
        if known is stored:
            return min(bucket.next_segment + len(bucket.loaded), entries - 1)
    return entries - 1


async def _put_in_place(buckets: BucketSet, stored: StoredBucket, entries: list[bytes]) -> None:
    old = stored.ledger_id
    async with buckets.store.writing() as writer:
        await writer.append(entries)
        await writer.finish()
        writer.naming = True
        await buckets.rename_ledger(stored, writer.ledger_id)
    await buckets.store.delete(old)
