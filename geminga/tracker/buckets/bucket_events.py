"""Tells what the buckets of one index go through: as events, and what is wrong in the log."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from geminga.errors import GemingaError
from geminga.events.recording import NO_COUNTS, Record
from geminga.tracker.buckets.bucket_counts import LostBy
from geminga.tracker.format.stored_bucket import KeyRange, StoredBucket

log = logging.getLogger("geminga.tracker")


class BucketEvents:
    """Of the index of this topic, and of this subscription ("": the one that all share)."""

    __slots__ = ("_record", "_subscription", "_topic")

    def __init__(self, record: Record, topic: str, subscription: str) -> None:
        self._record = record
        self._topic = topic
        self._subscription = subscription

    @property
    def owner_text(self) -> str:
        """Whose index it is, for the log."""
        topic, subscription = self._topic, self._subscription
        return f"{topic}, subscription {subscription}" if subscription else topic

    def sealed(self, bucket: StoredBucket) -> None:
        self._tell("bucket-sealed", bucket, counts=_size(bucket))

    def rebuilt(self, bucket: StoredBucket) -> None:
        """It was sealed, and has messages of a lost one."""
        log.info("%s: %r is rebuilt out of messages that were read again", self.owner_text, bucket)
        self._tell("bucket-rebuilt", bucket, counts=_size(bucket))

    def merged(self, bucket: StoredBucket, sources: int) -> None:
        self._tell("bucket-merged", bucket, counts={"sources": sources, **_size(bucket)})

    def loaded(self, bucket: StoredBucket, number: int) -> None:
        """A segment of it, by its number."""
        self._tell(
            "bucket-loaded",
            bucket,
            counts={"segment": number, "messages": int(bucket.directory.counts[number])},
        )

    def lost(self, bucket: StoredBucket, how: LostBy, error: GemingaError, messages: int) -> None:
        """It was lost while it served; `messages` of it wait."""
        self._log_lost(bucket, error)
        self._tell(
            "bucket-lost",
            bucket,
            f"{how}: {error}",
            counts={
                "messages": messages,
                "first_ledger": bucket.start_ledger,
                "last_ledger": bucket.end_ledger,
            },
        )

    def found_lost(self, found: object, ledger_id: int, covered: KeyRange, why: object) -> None:
        """A start found a bucket lost; what it held is not known."""
        self._log_lost(found, why)
        first_ledger, last_ledger = covered.ledgers
        self._record(
            "bucket-lost",
            topic=self._topic,
            subscription=self._subscription,
            bucket=ledger_id,
            text=f"start: {why}",
            counts={"first_ledger": first_ledger, "last_ledger": last_ledger},
        )

    def deleted(self, bucket: StoredBucket) -> None:
        self._tell("bucket-deleted", bucket)

    def recovered(self, buckets: int, lost: int) -> None:
        self._tell("index-recovered", None, counts={"buckets": buckets, "lost": lost})

    def _log_lost(self, bucket: object, why: object) -> None:
        text = "%s: %r is lost, its messages are read again from the topic: %s"
        log.error(text, self.owner_text, bucket, why)

    def _tell(
        self, kind: str, bucket: StoredBucket | None, text: str = "", counts: Mapping[str, int] = NO_COUNTS
    ) -> None:
        self._record(
            kind,
            topic=self._topic,
            subscription=self._subscription,
            bucket=-1 if bucket is None else bucket.ledger_id,
            text=text,
            counts=counts,
        )


def _size(bucket: StoredBucket) -> dict[str, int]:
    directory = bucket.directory
    return {"messages": directory.rows, "segments": directory.segments, "bytes": bucket.bytes}
