"""Sealing: frozen rows into buckets, one by one, while the index goes on serving them from memory."""

from __future__ import annotations

import logging

import trio

from geminga.errors import GemingaError
from geminga.tracker.buckets.bucket_settings import BucketSettings
from geminga.tracker.buckets.buckets import Buckets, Outdated
from geminga.tracker.buckets.retrying import BackOff
from geminga.tracker.format.bucket_format import Directory, EncodedBucket, decode_directory, encode_bucket
from geminga.tracker.format.rows import position_of
from geminga.tracker.format.stored_bucket import KeyRange, StoredBucket, whole_ledgers
from geminga.tracker.index.part import Frozen

log = logging.getLogger("geminga.tracker")


async def run_sealing(buckets: Buckets) -> None:
    """Until cancelled, which leaves what is frozen in memory and in the backlog."""
    back_off = BackOff()
    while True:
        if not buckets.frozen:
            await buckets.seal_signal.wait()
            continue
        frozen = buckets.frozen[0]
        # Delivered, or cleared, while it waited: a ledger, a record and a property for nothing.
        if not buckets.index.members.count_between(frozen.first_code, frozen.last_code):
            buckets.sealed(None)
            continue
        try:
            with buckets.operations.counting("create"):
                await _seal(buckets, frozen)
            back_off.succeeded()
        # All was cleared: the queue begins with something else, or is empty.
        except Outdated:
            continue
        except GemingaError as error:
            log.warning(
                "the delayed messages of ledgers %d to %d stay in memory, they cannot be sealed: %s",
                frozen.start_ledger,
                frozen.end_ledger,
                error,
            )
            # Nothing is lost by waiting: the rows are served from memory, and are in the backlog. Pulsar
            # keeps such messages in memory too, but after a few tries it gives the bucket up.
            await trio.sleep(back_off.next_s())


async def _seal(buckets: Buckets, frozen: Frozen) -> None:
    generation = buckets.generation
    # Off the loop: in Pulsar the dispatcher does this, 36 ms for 50,000 messages, and 1.5 s were seen (issue
    # #24603).
    encoded = await buckets.off_loop(_encode, frozen, buckets.settings)
    if encoded is None:
        # Unless all was cleared meanwhile.
        if buckets.frozen and buckets.frozen[0] is frozen:
            buckets.sealed(None)
        return
    entries, directory = encoded
    async with buckets.store.writing() as writer:
        await writer.append(entries.segments)
        # Last: a ledger that a crash left unfinished has no directory, and is not taken for a bucket.
        await writer.append(entries.directory)
        # Durable before it is named: a property must never name a ledger that is not whole.
        await writer.finish()
        bucket = StoredBucket(writer.ledger_id, directory, writer.bytes, covered_by(buckets, directory))
        await buckets.name(writer, bucket, (), generation, lambda _: buckets.sealed(bucket))


def covered_by(buckets: Buckets, directory: Directory) -> KeyRange:
    """What the name of a bucket with this directory speaks of: as little as it can, but whole ledgers."""
    # Pulsar's form of the name; a range of positions only where that cannot say it.
    if buckets.are_closed_ledgers(position_of(directory.first_code), position_of(directory.last_code)):
        return whole_ledgers(directory.start_ledger, directory.end_ledger)
    return KeyRange(directory.first_code, directory.last_code)


def _encode(frozen: Frozen, settings: BucketSettings) -> tuple[EncodedBucket, Directory] | None:
    """None: what is live of it has rows elsewhere by now, as after the clock was set back."""
    if not frozen.rows.length:
        return None
    encoded = encode_bucket(
        frozen.start_ledger,
        frozen.end_ledger,
        frozen.rows,
        settings.segment_span_ms,
        settings.segment_indexes_max,
    )
    return encoded, decode_directory(encoded.directory)
