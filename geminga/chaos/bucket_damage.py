"""Damages buckets on purpose, to test what follows. The broker checks the bucket at once, as after a report
of the bookie. With `quietly` it finds the damage as it would with a disk that returns wrong bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from geminga.errors import PeerError

if TYPE_CHECKING:
    from geminga.tracker.buckets.buckets import Buckets
    from geminga.tracker.format.stored_bucket import StoredBucket
    from geminga.tracker.index.index import DelayedIndex

Damage = Literal["lose", "truncate", "corrupt"]
"""Delete a bucket's ledger, cut off the second half of its entries, or flip a bit in one."""


class NothingLeft(PeerError):
    """Earlier damage has deleted the bucket's last entry, and the index has not noticed that yet."""

    http_status = 409


class IsLost(PeerError):
    """The bucket existed, and is lost already."""

    http_status = 409


async def damage_bucket(buckets: Buckets, how: Damage, ledger_id: int | None, *, quietly: bool) -> int | None:
    """Delete a bucket's ledger, or replace it by one that has only the first half of its entries, or a
    flipped bit in the segment that will be read next.

    Returns the (new) ledger; None if there is no such bucket. ledger_id None selects the first bucket.
    Unless `quietly`, the bucket is lost to the index on return, and is being read again. Raises
    `NothingLeft`, `IsLost`, StorageError.
    """
    if ledger_id in buckets.lost_ledgers:
        raise IsLost(
            f"the bucket in ledger {ledger_id} is lost already: its messages have been read again, or are"
        )
    stored = next((bucket for bucket in buckets.stored if ledger_id in (None, bucket.ledger_id)), None)
    if stored is None:
        return None
    await _damage(buckets, stored, how, quietly=quietly)
    damaged = stored.ledger_id
    if not quietly:
        from geminga.tracker.buckets.verify import inspect

        await inspect(buckets, stored, "told")
    return damaged


async def _damage(buckets: Buckets, stored: StoredBucket, how: Damage, *, quietly: bool) -> None:
    if how == "lose":
        if not buckets.store.is_ours(stored.ledger_id):
            raise IsLost(
                f"the bucket in ledger {stored.ledger_id} is lost already: 'geminga delayed verify' finds it"
            )
        if quietly:
            buckets.store.unwatch(stored.ledger_id)
        await buckets.store.delete(stored.ledger_id)
        return
    entries = await buckets.store.read_all(stored.ledger_id)
    if not entries:
        raise NothingLeft(f"the bucket in ledger {stored.ledger_id} has nothing left to damage")
    if how == "truncate":
        entries = entries[: len(entries) // 2]
    else:
        number = _next_read(buckets.index, stored, len(entries))
        damaged = bytearray(entries[number])
        damaged[len(damaged) // 2] ^= 1
        entries = [*entries[:number], bytes(damaged), *entries[number + 1 :]]
    await _put_in_place(buckets, stored, entries)


def _next_read(index: DelayedIndex, stored: StoredBucket, entries: int) -> int:
    """The first segment that is not in memory; the directory if all are."""
    for known, bucket in index.buckets.items():
        if known is stored:
            return min(bucket.next_segment + len(bucket.loaded), entries - 1)
    return entries - 1


async def _put_in_place(buckets: Buckets, stored: StoredBucket, entries: list[bytes]) -> None:
    old = stored.ledger_id
    async with buckets.store.writing() as writer:
        await writer.append(entries)
        await writer.finish()
        writer.begin_naming()
        await buckets.rename_ledger(stored, writer.ledger_id)
    await buckets.store.delete(old)
