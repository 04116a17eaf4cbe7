"""The delayed index of a running broker: its backlog and its buckets, read over the network, and buckets that
it is to take in. docs/rebuild.md.
"""

from __future__ import annotations

import re
import threading
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, chain
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

import numpy as np
from pyroaring import BitMap

from geminga.client.admin import delayed_path, topic_path
from geminga.names import TopicName
from geminga.pipeline.buckets.backlog import Share
from geminga.pipeline.buckets.buckets import (
    Division,
    Encoded,
    Fault,
    count_by_block,
    range_of_text,
    row_shares,
)
from geminga.pipeline.client.admin_http import get_bytes, get_json, post_bytes
from geminga.pipeline.columns.message_id import MessageId
from geminga.pipeline.errors import Access, AdminRefused, PipelineError
from geminga.pipeline.topics.options import Options
from geminga.pipeline.topics.planning import plan_batch
from geminga.pipeline.topics.ranges import Range
from geminga.pipeline.topics.reading import EntryReader
from geminga.tracker.format.bucket_bundle_format import (
    BUCKETS_MAX,
    BUNDLE_BYTES_MAX,
    BUNDLE_MORE_BYTES,
    bucket_bytes,
    decode_bundle,
    encode_bundle,
)
from geminga.tracker.format.rows import ENTRY_BITS, ENTRY_MASK, FAR_MS, Rows, concatenate
from geminga.tracker.format.stored_bucket import KeyRange, whole_ledgers

ADOPT_SECONDS: Final = 120.0
TRIES: Final = 20
PAUSE_SECONDS: Final = 0.5
_BUCKET_TRACKER: Final = "org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory"
KNOWN_TRIES: Final = 240
_ACKNOWLEDGED: Final = re.compile(r"([(\[])(-?\d+):(-?\d+)\.\.(-?\d+):(-?\d+)([)\]])")
_HELD: Final = {"delayed", "due", "pending", "to-be-sent-again", "acknowledged"}
"""What a broker says of a message that it knows all about."""


class Acknowledged(NamedTuple):
    """Of one subscription. `apart`: entry ids beyond `mark_delete`, serialised bitmaps by ledger."""

    mark_delete: tuple[int, int]
    apart: Mapping[int, bytes]


class Adopted(NamedTuple):
    """What a broker answered; see `AdoptedBuckets` there. `refused`: texts, each of one bucket."""

    buckets: int = 0
    messages: int = 0
    indexed: int = 0
    replaced: int = 0
    read_again: int = 0
    refused: tuple[str, ...] = ()

    def plus(self, other: Adopted) -> Adopted:
        return Adopted(
            self.buckets + other.buckets,
            self.messages + other.messages,
            self.indexed + other.indexed,
            self.replaced + other.replaced,
            self.read_again + other.read_again,
            self.refused + other.refused,
        )


class ServedIndex(NamedTuple):
    """The index that a subscription of a running broker looks at."""

    access: Access
    admin_url: str
    topic: str
    subscription: str

    def _path(self, tail: str) -> str:
        return f"{delayed_path(TopicName.parse(self.topic), self.subscription)}{tail}"

    def is_shared(self) -> bool:
        """Whether all subscriptions of the topic share it; waits until the broker knows all of its buckets.
        Raises `PipelineError`: it keeps none.
        """
        for _ in range(KNOWN_TRIES):
            summary = get_json(self.access, self.admin_url, self._path(""))
            if not summary["keepsBuckets"]:
                raise PipelineError(
                    "this broker's delayed index keeps no buckets: start it with "
                    f"delayedDeliveryTrackerFactoryClassName={_BUCKET_TRACKER} (docs/delayed-delivery.md)"
                )
            if not summary["isBeingRead"]:
                return bool(summary["isShared"])
            threading.Event().wait(PAUSE_SECONDS)
        raise PipelineError("the broker is still reading the index; try again")

    def buckets(self) -> dict[int, KeyRange]:
        """What their names speak of, by the ledgers that hold them. Raises `PipelineError`: the index keeps
        none.
        """
        self.is_shared()
        found = get_json(self.access, self.admin_url, self._path("/buckets"))
        return {int(one["ledgerId"]): _covered(one) for one in found if one["ledgerId"] is not None}

    def acknowledged(self) -> list[Acknowledged]:
        """Of each subscription whose messages the index has to have."""
        path = f"{topic_path(TopicName.parse(self.topic))}/internalStats"
        try:
            cursors = get_json(self.access, self.admin_url, path)["cursors"]
        except AdminRefused as error:
            if error.status != 404:
                raise
            raise PipelineError(
                f"{self.topic} is not there, or is partitioned: each partition has an index of its own, so "
                f"name one, such as {self.topic}-partition-0"
            ) from None
        if self.subscription not in cursors:
            raise PipelineError(f"{self.topic} has no subscription {self.subscription!r}")
        shared = self.is_shared()
        wanted = [name for name in cursors if shared or name == self.subscription]
        return [_acknowledged(cursors[name], self._more_ranges(path, name, cursors[name])) for name in wanted]

    def _more_ranges(self, path: str, name: str, cursor: Mapping[str, Any]) -> Iterator[str]:
        """What an answer has left out of a cursor's acknowledged ranges."""
        while cursor.get("gemingaRangesLeftOut"):
            _, _, last = cursor["individuallyDeletedMessages"].rstrip("]").rpartition("..")
            query = urlencode({"gemingaRangesOf": name, "gemingaRangesAfter": last.strip("[") or "-1:-1"})
            cursor = get_json(self.access, self.admin_url, f"{path}?{query}")["cursors"].get(name, {})
            yield cursor.get("individuallyDeletedMessages", "")

    def entries(self, ledger_id: int) -> dict[int, bytes]:
        """Of a bucket, those that can be read; none if it is gone."""
        try:
            data = get_bytes(self.access, self.admin_url, self._path(f"/buckets/{ledger_id}"))
        except AdminRefused as error:
            if error.status == 404:
                return {}
            raise
        (entries,) = decode_bundle(data)
        return {number: entry for number, entry in enumerate(entries) if entry}

    def knows(self, ledger_id: int, entry_id: int) -> bool:
        """Whether the index has a message, or need not have it."""
        answer = get_json(self.access, self.admin_url, self._path(f"/why/{ledger_id}/{entry_id}"))
        return answer["reason"] in _HELD

    def adopt(self, buckets: Iterable[Encoded], old: Collection[KeyRange] = ()) -> Iterator[Adopted]:
        """Have the broker take the buckets, which ascend, in, many at a time; what overlaps with one of `old`
        comes together where it can. What is refused is tried one by one.
        """
        for some in _bundles(buckets, old):
            try:
                yield self._send(some)
            except AdminRefused as error:
                if error.status not in (400, 409):
                    raise
                for one in some if len(some) > 1 else ():
                    yield self._try(one)
                if len(some) == 1:
                    yield Adopted(refused=(error.reason or str(error),))

    def _try(self, bucket: Encoded) -> Adopted:
        try:
            return self._send([bucket])
        except AdminRefused as error:
            if error.status not in (400, 409):
                raise
            return Adopted(refused=(error.reason or str(error),))

    def _send(self, buckets: Sequence[Encoded]) -> Adopted:
        bundle = encode_bundle([bucket.entries for bucket in buckets])
        path = self._path("/adopt")
        for tries_left in range(TRIES, -1, -1):
            try:
                found = post_bytes(self.access, self.admin_url, path, bundle, seconds=ADOPT_SECONDS)
                return _adopted(found)
            except AdminRefused as error:
                if error.status != 503 or not tries_left:
                    raise
                threading.Event().wait(PAUSE_SECONDS)
        raise AssertionError("unreachable")


def _adopted(found: Any) -> Adopted:
    return Adopted(
        buckets=int(found["buckets"]),
        messages=int(found["messages"]),
        indexed=int(found["indexed"]),
        replaced=int(found["replaced"]),
        read_again=int(found["readAgain"]),
    )


def _covered(bucket: Mapping[str, Any]) -> KeyRange:
    """Of a bucket as the admin API lists it; a broker of an older version has whole ledgers."""
    found = range_of_text(str(bucket.get("range", "")))
    return found or whole_ledgers(int(bucket["startLedger"]), int(bucket["endLedger"]))


def _bundles(buckets: Iterable[Encoded], old: Collection[KeyRange]) -> Iterator[list[Encoded]]:
    """As many as may be sent at once. If possible none of `old` has positions in two bundles: what of a
    bucket that is replaced comes later is read again meanwhile.
    """
    firsts = sorted(one.first_code for one in old)
    reaches = list(accumulate(sorted(old), lambda reach, one: max(reach, one.last_code), initial=-1))
    some: list[Encoded] = []
    whole = 0
    for bucket in buckets:
        first_code = bucket.covered.first_code
        if reaches[bisect_left(firsts, first_code)] < first_code:
            whole = len(some)
        while some and not _is_bundle([*some, bucket]):
            yield some[: whole or len(some)]
            some, whole = some[whole or len(some) :], 0
        some.append(bucket)
    if some:
        yield some


def _is_bundle(buckets: Sequence[Encoded]) -> bool:
    size_bytes = BUNDLE_MORE_BYTES + sum(bucket_bytes(bucket.entries) for bucket in buckets)
    return size_bytes <= BUNDLE_BYTES_MAX and len(buckets) <= BUCKETS_MAX


def _acknowledged(cursor: Mapping[str, Any], more: Iterable[str]) -> Acknowledged:
    ledger, _, entry = cursor["markDeletePosition"].partition(":")
    apart: dict[int, BitMap] = {}
    for ranges in chain((cursor["individuallyDeletedMessages"],), more):
        for opened, first_ledger, first, last_ledger, last, closed in _ACKNOWLEDGED.findall(ranges):
            if first_ledger == last_ledger:
                begin, end = int(first) + (opened == "("), int(last) + (closed == "]")
                apart.setdefault(int(first_ledger), BitMap()).add_range(begin, end)
    return Acknowledged((int(ledger), int(entry)), {id_: ids.serialize() for id_, ids in apart.items()})


# -- sources ------------------------------------------------------------------------------------------------


class ServedRows(NamedTuple):
    """A part of the topic, read as a reader reads it."""

    access: Access
    part: Range
    acknowledged: tuple[Acknowledged, ...]
    """What all of these have acknowledged is left out."""
    due_after_ms: int
    poll_timeout_s: float

    def rows(self) -> Rows:
        found = []
        for entries in EntryReader(self.access, self.part, poll_timeout_s=self.poll_timeout_s).buffers():
            due_ms = entries.due_ms
            delayed = due_ms > self.due_after_ms
            times_ms = np.minimum(due_ms[delayed], FAR_MS)
            codes = (entries.ledger_id[delayed] << ENTRY_BITS) | entries.entry_id[delayed]
            found.append(self._wanted(Rows(times_ms, codes)))
        return concatenate(found)

    def counts(self) -> dict[int, int]:
        return count_by_block(self.rows())

    def _wanted(self, rows: Rows) -> Rows:
        done = np.ones(rows.length, bool)
        for one in self.acknowledged:
            done &= _done(rows, one)
        return rows.where(~done)

    def shares(self, division: Division) -> Iterator[Share]:
        if division.has_any(_code_of(self.part.start), _code_of(self.part.end)):
            yield from row_shares(self.rows(), division)


def _code_of(message_id: MessageId) -> int:
    return (message_id.ledger_id << ENTRY_BITS) + message_id.entry_id


def _done(rows: Rows, cursor: Acknowledged) -> np.ndarray[Any, np.dtype[np.bool_]]:
    mark = (cursor.mark_delete[0] << ENTRY_BITS) + cursor.mark_delete[1]
    done: np.ndarray[Any, np.dtype[np.bool_]] = rows.codes <= mark
    ledgers = rows.codes >> ENTRY_BITS
    for ledger_id in np.unique(ledgers).tolist():
        if (data := cursor.apart.get(ledger_id)) is not None:
            ids = np.frombuffer(BitMap.deserialize(data).to_array(), np.uint32)
            done |= (ledgers == ledger_id) & np.isin(rows.codes & ENTRY_MASK, ids)
    return done


class ServedBucket(NamedTuple):
    """A bucket of a running broker."""

    served: ServedIndex
    ledger_id: int

    def rows(self) -> Rows:
        return concatenate([])

    def counts(self) -> dict[int, int]:
        return {}

    def shares(self, division: Division) -> Iterator[Share]:
        if self.ledger_id in division.buckets:
            for entry_id, entry in self.served.entries(self.ledger_id).items():
                yield self.ledger_id, "entry", entry_id, entry


def served_rows(index: ServedIndex, options: Options, due_after_ms: int) -> list[ServedRows]:
    """What is stored now and not acknowledged, in parts. `PipelineError`."""
    acknowledged = tuple(index.acknowledged())
    ledger_id, entry_id = min(one.mark_delete for one in acknowledged)
    after = MessageId(ledger_id, entry_id + 1, 0)
    parts = []
    for part in plan_batch(options):
        start = max(part.start, after)
        if start < part.end:
            parts.append(replace(part, start=start))
    return [
        ServedRows(index.access, part, acknowledged, due_after_ms, options.poll_timeout_s) for part in parts
    ]


def served_buckets(index: ServedIndex, buckets: Iterable[int]) -> list[ServedBucket]:
    return [ServedBucket(index, ledger_id) for ledger_id in buckets]


def still_faults(index: ServedIndex, faults: Sequence[Fault]) -> list[Fault]:
    """Without those of buckets that are gone by now, and without what a broker has in memory."""
    there = index.buckets()
    return [
        fault
        for fault in faults
        if fault.bucket in there
        and not (fault.fault == "missing" and index.knows(fault.ledger_id, fault.entry_id))
    ]
