"""Answers about a delayed index, which the admin API sends unchanged, in camel case. Times are ms since
1970.
"""

from __future__ import annotations

import msgspec


class NotRead(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """Entries that the broker has not read for a subscription yet: any of them may be delayed."""

    why: str
    """One of: recovering (the index is being read after a start), rebuilding (lost or skipped entries are
    being read again), lost (they were in the ledgers of a lost bucket, and will be read again when a consumer
    connects), no-room (they will be read when some of the index is written to disk), no-consumer (they will
    be read when the first consumer connects), unread (consumers have not reached them yet).
    """
    text: str
    """A text for users."""
    entries: int
    of: int
    """The number of unacknowledged entries in these ledgers, including those that the index already has
    again.
    """
    start_ledger: int | None = None
    end_ledger: int | None = None
    """The ledgers of the entries, as far as known."""
    partition: int | None = None


class DelayedPrecision(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """The precision of a subscription. For a partitioned topic, also that of each partition if
    they differ.
    """

    precision_ms: int | None
    """None if there is no precision, or if partitions differ."""
    by_partition: dict[str, int | None] | None = None
    holds_back: bool
    """Whether the consumers' type respects delivery times; Exclusive and Failover do not."""


class DelayedSummary(msgspec.Struct, rename="camel", kw_only=True):
    """`backlog` is the sum of `messages`, `pending`, `to_be_sent_again` and `unread`."""

    messages: int
    """Messages in the index: they wait for their time, or are due and wait for a consumer with permits."""
    due: int
    """Those of `messages` that are due; an estimate for a segment that is not loaded."""
    backlog: int
    """Entries that are not acknowledged, delayed or not."""
    pending: int
    """Entries that were sent to a connected consumer. When the last consumer leaves, these are to be sent
    again.
    """
    to_be_sent_again: int
    """Without a consumer also what was read for the index and is not delayed."""
    unread: int
    """If the index is not shared, these entries may be delayed, and are read when a consumer connects."""
    consumers: int
    held_up_by: str = ""
    """What keeps due messages in the index although consumers may have permits, for users: the look-ahead
    limit of Key_Shared. Of the first partition where something does.
    """
    holds_back: bool
    """False if the consumers are, or were last, of a type that gets every message at once."""
    next_due_ms: int | None
    """None if no message waits. While messages are `due`, the due time of one of them: the index does not
    keep all of these.
    """
    index_bytes: int
    keeps_buckets: bool
    is_shared: bool
    buckets: int
    bucket_bytes: int
    """Bytes of the buckets on the bookie, without the growing part."""
    is_being_read: bool = False
    """Whether some buckets of an earlier process are not known yet."""
    not_read: list[NotRead] = []
    """Why entries are unread. The counts add up to `unread`, except for subscriptions that do not respect
    delivery times.
    """
    partitions: int = 0
    """The number of partitions in this sum; 0: the topic is not partitioned."""


class DueCount(msgspec.Struct, rename="camel", kw_only=True):
    """Messages due from `from_ms` on and before `to_ms`."""

    from_ms: int
    to_ms: int
    messages: int
    is_estimated: bool = False
    """For most segments on disk only the first and last time are known, and messages are spread between
    these.
    """


class DueHistogram(msgspec.Struct, rename="camel", kw_only=True):
    """Waiting messages, by due time."""

    width_ms: int
    """The width of each class: the requested width, doubled until there are few enough classes."""
    classes: list[DueCount]
    """Ascending, without empty ones."""
    not_read: list[NotRead] = []
    """Entries that the answer does not cover, and why; likewise in a page of messages."""


class DelayedMessage(msgspec.Struct, rename="camel", kw_only=True):
    ledger_id: int
    entry_id: int
    due_ms: int | None
    """None: the metadata cannot be read."""


class DelayedPage(msgspec.Struct, rename="camel", kw_only=True):
    messages: list[DelayedMessage]
    next: str | None
    """The start of the next page, as `ledger:entry`; None after the last page."""
    not_read: list[NotRead] = []


class WhyNotDelivered(msgspec.Struct, rename="camel", kw_only=True):
    reason: str
    """One of: acknowledged, pending, delayed, due, to-be-sent-again, not-read-yet, no-such-entry."""
    text: str
    """A text for users."""
    due_ms: int | None = None


class NotCancelled(msgspec.Struct, rename="camel", kw_only=True):
    message: str
    """As `ledger:entry`."""
    why: str
    """A text for users."""


class CancelResult(msgspec.Struct, rename="camel", kw_only=True):
    cancelled: int
    not_cancelled: list[NotCancelled]


class SegmentInfo(msgspec.Struct, rename="camel", kw_only=True):
    number: int
    first_due_ms: int
    last_due_ms: int
    messages: int
    bytes: int
    is_loaded: bool


class BucketInfo(msgspec.Struct, rename="camel", kw_only=True):
    """A part of the index, or a range of entries that the index does not have yet. The `messages` of all
    rows add up to the count of the summary, and the `not_read` of all rows to its `unread`.
    """

    state: str
    """due: waits for a consumer with permits; growing: takes new positions; frozen: waits to be written;
    sealed: in a ledger of its own; loading: sealed, and a segment of it is being read; memory: stays in
    memory. Also the values of `NotRead`.
    """
    partition: int | None = None
    range: str = ""
    """The range: ledgers, or first and last position as `ledger:entry`; empty: any."""
    start_ledger: int | None
    end_ledger: int | None
    ledger_id: int | None
    """The part's own ledger on the bookie; None: the part is only in memory."""
    messages: int
    """Messages that still wait for this subscription."""
    is_estimated: bool = False
    """Whether some of the messages may be in another bucket with an overlapping range."""
    not_read: int = 0
    why: str = ""
    """Why these entries are not read, for users."""
    rows_on_disk: int = 0
    rows_in_memory: int = 0
    """Rows in memory and on the bookie, for all subscriptions that share the index."""
    bytes: int
    """Bytes on the bookie."""
    first_due_ms: int | None = None
    last_due_ms: int | None = None
    segments: list[SegmentInfo]


class LedgerMembers(msgspec.Struct, rename="camel", kw_only=True):
    """The part of a bucket from one ledger of the topic."""

    ledger_id: int
    messages: int
    waiting: int
    """Those that wait for the given subscription."""
    first_entry: int
    last_entry: int


class BucketContent(msgspec.Struct, rename="camel", kw_only=True):
    """The content of a bucket on the bookie."""

    topic: str
    partition: int | None = None
    property: str
    """The property that names the bucket."""
    ledger_id: int
    range: str
    messages: int
    """The number of messages when the bucket was sealed."""
    bytes: int
    segments: list[SegmentInfo]
    """In the order of due times, which is the order of the entries; the directory follows them."""
    ledgers: list[LedgerMembers]


class BucketRow(msgspec.Struct, rename="camel", kw_only=True):
    ledger_id: int
    entry_id: int
    due_ms: int
    """The due time when the bucket was sealed, without later changes."""
    segment: int
    waits: bool
    """False: acknowledged, cancelled or delivered to this subscription."""


class BucketRows(msgspec.Struct, rename="camel", kw_only=True):
    """Rows by due time."""

    messages: list[BucketRow]
    next: int | None
    """The number of the first row of the next page; None after the last page."""


class AdoptedBuckets(msgspec.Struct, rename="camel", kw_only=True):
    """The result of adding buckets that were built elsewhere."""

    buckets: int
    messages: int
    """Messages in the buckets, including those that are acknowledged or were indexed before."""
    indexed: int
    """Those of `messages` that were not in the index before."""
    replaced: int
    """Buckets that were replaced."""
    read_again: int
    """Messages that only the replaced buckets had. The broker reads them from the backlog again."""
