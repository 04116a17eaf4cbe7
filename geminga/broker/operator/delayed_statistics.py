"""What is told of a delayed index: by the admin API as it stands, in camel case. Times are ms since 1970."""

from __future__ import annotations

import msgspec


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
    """Of each class: what was asked for, doubled as often as it took to have few enough classes."""
    classes: list[DueCount]
    """Ascending, without empty ones."""


class DelayedMessage(msgspec.Struct, rename="camel", kw_only=True):
    ledger_id: int
    entry_id: int
    due_ms: int | None
    """None: its metadata cannot be read."""


class DelayedPage(msgspec.Struct, rename="camel", kw_only=True):
    messages: list[DelayedMessage]
    next: str | None
    """Where the next page starts, as `ledger:entry`; None: that was the last."""


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
    start_ledger: int
    end_ledger: int
    ledger_id: int | None
    """Of its own ledger on the bookie; None: it is only in memory."""
    messages: int
    """Those that still wait."""
    bytes: int
    segments: list[SegmentInfo]


class AdoptedBuckets(msgspec.Struct, rename="camel", kw_only=True):
    """What became of buckets that were built elsewhere."""

    buckets: int
    messages: int
    """In them, those that are acknowledged or were indexed before included."""
    indexed: int
    """Of these, how many were not in the index before."""
    replaced: int
    """Buckets that these took the place of."""
    read_again: int
    """Messages that only the replaced ones had, and that are read from the backlog once more."""
