"""Answers about a delayed index, which the admin API sends unchanged, in camel case. Times are ms since
1970."""

from __future__ import annotations

import msgspec


class NotRead(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """Entries that a subscription has not been looked up for yet: any of them may have to wait."""

    why: str
    """One of: recovering (the index is being read back after a start), rebuilding (it had lost them, or
    passed over them, and they are being read again), lost (they will be, when a consumer connects), no-room
    (when some of the index is written to disk), no-consumer (when the first consumer connects), unread
    (consumers have not come to them yet)."""
    text: str
    """For people."""
    entries: int
    of: int
    """Not acknowledged of the same ledgers, those that the index has by now included."""
    start_ledger: int | None = None
    end_ledger: int | None = None
    """Where they are, as far as that is known."""
    partition: int | None = None


class DelayedPrecision(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """What a subscription was given; of a partitioned topic what each partition was, if they differ."""

    precision_ms: int | None
    """None: nothing, or not the same."""
    by_partition: dict[str, int | None] | None = None
    holds_back: bool
    """Whether its consumers' type lets it: that of Exclusive and Failover ones does not."""


class DelayedSummary(msgspec.Struct, rename="camel", kw_only=True):
    """`backlog` is the sum of `messages`, `pending`, `to_be_sent_again` and `unread`."""

    messages: int
    """Those that the index has: they wait for their time, or are due and wait for a consumer with permits."""
    due: int
    """Of these, the ones that are due; of a segment that is not loaded it is an estimate."""
    backlog: int
    """Entries that are not acknowledged, delayed or not."""
    pending: int
    """Sent to a consumer that is connected. When the last one leaves, these and those to be sent again are
    unread as before."""
    to_be_sent_again: int
    unread: int
    """Where the index is not shared these may be delayed, and are looked at when a consumer comes."""
    consumers: int
    holds_back: bool
    """False: its consumers are, or were last, of a type that gets every message at once."""
    next_due_ms: int | None
    """None: nothing waits."""
    index_bytes: int
    keeps_buckets: bool
    is_shared: bool
    buckets: int
    bucket_bytes: int
    """Both on the bookie: without the part that still grows."""
    is_being_read: bool = False
    """Whether there are buckets of an earlier process that are not all known yet."""
    not_read: list[NotRead] = []
    """Why the unread ones are; together as many, but for subscriptions that hold nothing back."""
    partitions: int = 0
    """Of which this is the sum; 0: the topic is not partitioned."""


class DueCount(msgspec.Struct, rename="camel", kw_only=True):
    """Messages due from `from_ms` on and before `to_ms`."""

    from_ms: int
    to_ms: int
    messages: int
    is_estimated: bool = False
    """Of most segments on disk only the first and last time are known; they are spread between these."""


class DueHistogram(msgspec.Struct, rename="camel", kw_only=True):
    """Messages that wait, by due time."""

    width_ms: int
    """Of each class: the requested width, doubled until there are few enough classes."""
    classes: list[DueCount]
    """Ascending, without empty ones."""
    not_read: list[NotRead] = []
    """What is not in it, and why; likewise in a page of messages."""


class DelayedMessage(msgspec.Struct, rename="camel", kw_only=True):
    ledger_id: int
    entry_id: int
    due_ms: int | None
    """None: its metadata cannot be read."""


class DelayedPage(msgspec.Struct, rename="camel", kw_only=True):
    messages: list[DelayedMessage]
    next: str | None
    """Where the next page starts, as `ledger:entry`; None: that was the last."""
    not_read: list[NotRead] = []


class WhyNotDelivered(msgspec.Struct, rename="camel", kw_only=True):
    reason: str
    """One of: acknowledged, pending, delayed, due, to-be-sent-again, not-read-yet, no-such-entry."""
    text: str
    """For people."""
    due_ms: int | None = None


class NotCancelled(msgspec.Struct, rename="camel", kw_only=True):
    message: str
    """As `ledger:entry`."""
    why: str
    """For people."""


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
    """A part of the index, or a range of entries that it does not have yet. The `messages` of all rows are
    those of the summary, and the `not_read` of all its `unread`.
    """

    state: str
    """due: waits for a consumer to take it; growing: being fed; frozen: waits to be written; sealed: in a
    ledger of its own; loading: that, and a segment of it is being read; memory: stays there. And those of
    `NotRead`."""
    partition: int | None = None
    range: str = ""
    """The ledgers, or first and last position as `ledger:entry`, that it covers; empty: any."""
    start_ledger: int | None
    end_ledger: int | None
    ledger_id: int | None
    """Of its own ledger on the bookie; None: it is only in memory."""
    messages: int
    """Those that still wait for this subscription."""
    is_estimated: bool = False
    """Whether some of them may be in another bucket of an overlapping range."""
    not_read: int = 0
    why: str = ""
    """These are not read; for people."""
    rows_on_disk: int = 0
    rows_in_memory: int = 0
    """Both as the index has them, for all subscriptions that share it."""
    bytes: int
    """On the bookie."""
    first_due_ms: int | None = None
    last_due_ms: int | None = None
    segments: list[SegmentInfo]


class LedgerMembers(msgspec.Struct, rename="camel", kw_only=True):
    """What a bucket has of one ledger of the topic."""

    ledger_id: int
    messages: int
    waiting: int
    """Of these, for the subscription that was asked for."""
    first_entry: int
    last_entry: int


class BucketContent(msgspec.Struct, rename="camel", kw_only=True):
    """A bucket as it is on the bookie."""

    topic: str
    partition: int | None = None
    property: str
    """Which names it."""
    ledger_id: int
    range: str
    messages: int
    """When it was sealed."""
    bytes: int
    segments: list[SegmentInfo]
    """In the order of due times, which is that of the entries; the directory comes after them."""
    ledgers: list[LedgerMembers]


class BucketRow(msgspec.Struct, rename="camel", kw_only=True):
    ledger_id: int
    entry_id: int
    due_ms: int
    """As it was sealed; another time that a message was given since is not in here."""
    segment: int
    waits: bool
    """False: acknowledged, cancelled or delivered to this subscription."""


class BucketRows(msgspec.Struct, rename="camel", kw_only=True):
    """By due time."""

    messages: list[BucketRow]
    next: int | None
    """The number of the row that the next page starts with; None: that was the last."""


class AdoptedBuckets(msgspec.Struct, rename="camel", kw_only=True):
    """What became of buckets that were built elsewhere."""

    buckets: int
    messages: int
    """In them, those that are acknowledged or were indexed before included."""
    indexed: int
    """Of these, how many were not in the index before."""
    replaced: int
    """Buckets that these replaced."""
    read_again: int
    """Messages that only the replaced ones had. They are read from the backlog again."""
