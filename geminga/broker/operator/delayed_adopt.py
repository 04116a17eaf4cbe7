"""Adds buckets that were built elsewhere to a topic that is in use: checks them against the topic, writes
them, names them in one write, and adds them to the index. A refusal changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import trio
from pyroaring import BitMap

from geminga.broker.operator.delayed_statistics import AdoptedBuckets
from geminga.errors import Conflict, CorruptData, NotAllowed, PeerError, ProtocolError, ServiceNotReady
from geminga.tracker.buckets.bucket_check import whole_bucket
from geminga.tracker.buckets.bucket_store import BucketWriter
from geminga.tracker.buckets.buckets import Buckets, Outdated
from geminga.tracker.buckets.recovery import unacknowledged
from geminga.tracker.buckets.retrying import OffLoop
from geminga.tracker.buckets.sealing import covered_by
from geminga.tracker.format.bucket_bundle_format import decode_bundle
from geminga.tracker.format.bucket_format import Directory
from geminga.tracker.format.rows import FAR_MS, position_of
from geminga.tracker.format.stored_bucket import StoredBucket
from geminga.tracker.index.adopting import (
    GivenOut,
    add_bucket,
    cut_off,
    left_over,
    replace_bucket,
    replaced_by,
    reserve,
    union,
    unreserve,
)
from geminga.tracker.index.reader import Reader
from geminga.wire.message_metadata import peek

if TYPE_CHECKING:
    from geminga.broker.subscription.subscription import Subscription
    from geminga.broker.topic.topic import Topic

SPOT_CHECKS: Final = 8
"""The number of messages of each bucket that are read to check their due times."""
READ_AGAIN_MAX: Final = 200_000
"""The limit of messages that only the replaced buckets have; the broker reads them from the
backlog again.
"""
SEALED_WITHIN_S: Final = 20.0
LOOK_AGAIN_S: Final = 0.01


class BadBucket(PeerError):
    """The request has no bucket, or a bucket of another topic."""


class _New(NamedTuple):
    directory: Directory
    """The directory, including its members."""
    entries: list[bytes]
    sampled: list[tuple[int, int, int]]
    """A sample of its messages: ledger, entry, due time."""

    @property
    def range(self) -> tuple[int, int]:
        """The first and the last of its positions, as packed positions."""
        return self.directory.first_code, self.directory.last_code


@dataclass
class _Adoption:
    """One request, after the checks."""

    subscription: Subscription
    buckets: Buckets
    new: list[_New]
    generation: int
    written: list[tuple[BucketWriter, StoredBucket]] = field(default_factory=list)
    indexed: int = 0
    read_again: int = 0
    replaced: int = 0


async def adopt_buckets(topic: Topic, subscription: Subscription, bundle: bytes) -> AdoptedBuckets:
    """Add the buckets of a bundle to the index that the subscription uses. They replace all buckets that
    overlap with them. Durable and in effect on return.

    Raises BadBucket (damaged, or of another topic), Conflict (many messages are only in the replaced
    buckets), NotAllowed (this index keeps no buckets), ServiceNotReady and StorageError; nothing has changed
    then. Cancelling leaves all of it done, or nothing.
    """
    buckets = await _buckets_of(topic, subscription)
    async with buckets.adopting:
        if not buckets.is_recovered:
            raise ServiceNotReady("the index is still being read; try again")
        generation = buckets.generation
        new = await _decoded(buckets.off_loop, bundle)
        for one in new:
            _check_belongs(topic, subscription, one.directory)
            await _check_times(topic, subscription, one.sampled)
        adoption = _Adoption(subscription, buckets, new, generation)
        ranges = [one.range for one in new]
        reserve(buckets.index, ranges)
        try:
            await _wait_sealed(buckets, ranges)
            await _check_replaced(buckets, ranges, new)
            try:
                await _write(adoption)
                await _name(topic, adoption)
            except BaseException as error:
                await _abandon(adoption, error)
                raise
        except Outdated as error:
            raise Conflict(f"the subscription was cleared meanwhile: {error}") from error
        finally:
            unreserve(buckets.index, ranges)
    return AdoptedBuckets(
        buckets=len(new),
        messages=sum(one.directory.rows for one in new),
        indexed=adoption.indexed,
        replaced=adoption.replaced,
        read_again=adoption.read_again,
    )


async def _buckets_of(topic: Topic, subscription: Subscription) -> Buckets:
    delays, delayed = topic.delays, subscription.delayed
    if not delays.settings.keeps_buckets:
        raise NotAllowed(
            "this broker's delayed index keeps no buckets: delayedDeliveryTrackerFactoryClassName would have "
            "to be BucketDelayedDeliveryTrackerFactory"
        )
    if not delayed.policy.active:
        raise NotAllowed("delayed delivery is switched off for this topic")
    if not subscription.cursor.durable:
        raise NotAllowed(f"{subscription.name} is not durable: its index keeps no buckets")
    await delayed.open()
    buckets = delayed.buckets
    if buckets is None or delayed.tracker is None:
        raise ServiceNotReady("the subscription is being closed; try again")
    return buckets


# -- checks -------------------------------------------------------------------------------------------------


async def _decoded(off_loop: OffLoop, bundle: bytes) -> list[_New]:
    try:
        buckets = await off_loop(decode_bundle, bundle)
        new = [await off_loop(_look_into, entries) for entries in buckets]
    except CorruptData as error:
        raise BadBucket(str(error)) from None
    if not new:
        raise BadBucket("there is no bucket in it")
    ranges = sorted(one.range for one in new)
    for before, after in pairwise(ranges):
        if after[0] <= before[1]:
            ledger_id, entry_id = position_of(after[0])
            raise BadBucket(f"two buckets span message {ledger_id}:{entry_id}")
    return new


def _look_into(entries: list[bytes]) -> _New:
    directory, rows = whole_bucket(dict(enumerate(entries)))
    step = max(1, rows.length // SPOT_CHECKS)
    codes, times_ms = rows.codes[::step].tolist(), rows.times_ms[::step].tolist()
    sampled = [(*position_of(code), at_ms) for code, at_ms in zip(codes, times_ms, strict=True)]
    return _New(directory, entries, sampled)


def _check_belongs(topic: Topic, subscription: Subscription, directory: Directory) -> None:
    """Check that the topic has all of the bucket, and that some of it is not acknowledged yet."""
    ledger = topic.ledger
    ids = [info.ledger_id for info in ledger.ledgers]
    first, last = directory.start_ledger, directory.end_ledger
    name = f"the bucket of ledgers {first} to {last}"
    if not ids or first < ids[0] or last > ids[-1]:
        there = f"has the ledgers {ids[0]} to {ids[-1]}" if ids else "has no ledger"
        raise BadBucket(f"{name}: the topic {there}")
    for ledger_id, entry_ids in directory.members.items():
        if entry_ids.max() >= ledger.entries_in(ledger_id):
            raise BadBucket(f"{name}: there is no message {ledger_id}:{entry_ids.max()}")
    if not unacknowledged(topic.delays.wanted_by(subscription.delayed), directory.members):
        raise BadBucket(f"{name}: all of its messages are acknowledged")


async def _check_times(topic: Topic, subscription: Subscription, sampled: list[tuple[int, int, int]]) -> None:
    """Check that a sample of messages has the due times of the bucket."""
    said = {(ledger_id, entry_id): at_ms for ledger_id, entry_id, at_ms in sampled}
    for entry in await topic.ledger.read_positions(sorted(said)):
        try:
            due_ms = min(peek(entry.body).deliver_at_ms, FAR_MS)
        except ProtocolError:
            due_ms = 0
        if due_ms != said[entry.position]:
            ledger_id, entry_id = entry.position
            raise BadBucket(
                f"message {ledger_id}:{entry_id} is due at {due_ms}, not at {said[entry.position]}: these "
                "buckets were built from another backlog"
            )


async def _check_replaced(buckets: Buckets, ranges: Sequence[tuple[int, int]], new: Sequence[_New]) -> None:
    kept = union([one.directory.members for one in new])
    for bucket in replaced_by(buckets.index, ranges):
        await trio.lowlevel.checkpoint()
        lost = sum(map(len, left_over(buckets.index, bucket, kept).values()))
        if lost > READ_AGAIN_MAX:
            raise Conflict(
                f"{bucket!r} would be replaced, and has {lost} messages that these do not have; bring "
                "buckets for all of its messages at once"
            )


async def _wait_sealed(buckets: Buckets, ranges: Sequence[tuple[int, int]]) -> None:
    for _ in range(round(SEALED_WITHIN_S / LOOK_AGAIN_S)):
        if cut_off(buckets.index, ranges):
            return
        await trio.sleep(LOOK_AGAIN_S)
    raise ServiceNotReady("what the index has in memory of these messages could not be sealed; try again")


# -- in -----------------------------------------------------------------------------------------------------


async def _write(adoption: _Adoption) -> None:
    buckets = adoption.buckets
    for one in adoption.new:
        writer = await buckets.store.begin()
        size_bytes, covered = sum(map(len, one.entries)), covered_by(buckets, one.directory)
        stored = StoredBucket(writer.ledger_id, one.directory, size_bytes, covered)
        adoption.written.append((writer, stored))
        await writer.append(one.entries)
    for writer, _ in adoption.written:
        await writer.finish()


async def _abandon(adoption: _Adoption, error: BaseException) -> None:
    """Delete the written buckets. A bucket that was named and cleared meanwhile is left to the request that
    cleared it.
    """
    with trio.CancelScope(shield=True):
        for writer, _ in adoption.written:
            await adoption.buckets.store.abandon(writer, error)


async def _name(topic: Topic, adoption: _Adoption) -> None:
    buckets, index = adoption.buckets, adoption.buckets.index
    pairs = zip(adoption.written, adoption.new, strict=True)
    members = {stored: one.directory.members for (_, stored), one in pairs}
    kept = union(list(members.values()))
    given_out = _given_out(topic, buckets)

    def replaced() -> list[StoredBucket]:
        old = replaced_by(index, [one.range for one in adoption.new])
        adoption.replaced = len(old)
        return old

    def tell_index(bucket: StoredBucket) -> bool:
        wanted = unacknowledged(topic.delays.wanted_by(adoption.subscription.delayed), members[bucket])
        if not wanted:
            return False
        adoption.indexed += add_bucket(index, bucket, wanted, given_out)
        return True

    def tell_replaced(bucket: StoredBucket) -> None:
        adoption.read_again += replace_bucket(index, bucket, kept)

    await buckets.name_all(adoption.written, replaced, adoption.generation, tell_index, tell_replaced)


def _given_out(topic: Topic, buckets: Buckets) -> GivenOut:
    by_reader = {
        delayed.tracker.reader: delayed.given_out
        for delayed in topic.delays.users_of(buckets)
        if delayed.tracker is not None
    }

    def given_out(reader: Reader, ledger_id: int) -> BitMap:
        found = by_reader.get(reader)
        return BitMap() if found is None else found.of_ledger(ledger_id)

    return given_out
