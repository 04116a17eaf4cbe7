"""What an audit calls lost, early and late, and what a first pass over the logs has to tell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple

import numpy as np

from geminga.pipeline.audit.events import ACKED, DUPLICATE, KINDS, PUBLISHED, Events

MINUTE_MS: Final = 60_000


class AuditSettings(NamedTuple):
    until_ms: int | None = None
    """Where the audited time ends; None: with the last event."""
    settle_ms: int = 5_000
    """What was due so shortly before the end may still be under way: it is pending, not lost."""
    early_ms: int | None = None
    """How much before its due time a first delivery may come; None: as each event's `early_ms` says, which
    is 0 but in the logs of brokers that have said otherwise.
    """
    late_ms: int = 1_000
    """How long after its due time a first delivery may come."""
    order: Literal["client", "key", "subscription", "none"] = "client"
    """Within what the messages of a subscription have to come in the order of the topic."""
    level: Literal["auto", "message", "entry"] = "auto"
    """What a position is. "entry": batch indexes are left aside; "auto": they are if any log has an event of
    a whole batch, as a broker's has.
    """
    start: Literal["all", "first"] = "all"
    """Of which messages a subscription gets, if no `subscribed` event says it: all, or those from the first
    on that it was given.
    """


class Control(NamedTuple):
    """An event that changes what may be expected of a subscription."""

    kind: int
    time_ms: int
    topic: str
    subscription: str
    client: str
    ledger_id: int
    entry_id: int
    batch_size: int
    piece: int
    row: int


class Facts(NamedTuple):
    """What every part of the audit has to know of the whole."""

    settings: AuditSettings
    until_ms: int
    batch_bits: int
    controls: tuple[Control, ...]
    by_entry: bool = False
    """Whether a position is an entry, however many messages it has."""


class Scanned(NamedTuple):
    """What a first look at a piece finds."""

    last_ms: int
    batch_index_max: int
    controls: list[Control]
    has_whole_batches: bool = False


_ALWAYS: Final = ("kind", "time_ms", "topic", "subscription", "ledger_id", "entry_id", "batch_index")


def columns_of(kind: str, facts: Facts) -> Sequence[str] | None:
    """What has to be read of a log that has events of this kind only; None: all."""
    if kind == "published":
        return (*_ALWAYS, "deliver_at_ms")
    if kind == "acked":
        return _ALWAYS
    if kind != "dispatched":
        return None
    more = ["client", "redelivery_count", "deliver_at_ms", "publish_time_ms", "step_ms"]
    if facts.settings.order == "key":
        more.append("key")
    if facts.settings.early_ms is None:
        more.append("early_ms")
    return (*_ALWAYS, *more)


SCANNED_COLUMNS: Final = ("kind", "time_ms", "ledger_id", "entry_id", "batch_index", "batch_size")
MESSAGE_KINDS: Final = ("published", "dispatched", "acked")
_CONTROLS: Final = tuple(
    KINDS[name]
    for name in (
        "opened",
        "skipped_up_to",
        "subscribed",
        "unsubscribed",
        "sought",
        "missed",
        "closed",
        "released",
    )
)


def has_controls(events: Events) -> bool:
    return bool(np.isin(events.kind, _CONTROLS).any())


def scan(events: Events, piece: int) -> Scanned:
    """Of whole events, or those with `SCANNED_COLUMNS` if they have no controls."""
    messages = (events.kind >= PUBLISHED) & (events.kind <= ACKED)
    times = events.time_ms[messages | (events.kind == DUPLICATE)]
    batches = events.batch_index[messages]
    controls = []
    for row in np.flatnonzero(np.isin(events.kind, _CONTROLS)).tolist():
        topic, subscription, client = events.topic[row], events.subscription[row], events.client[row]
        controls.append(
            Control(
                int(events.kind[row]),
                int(events.time_ms[row]),
                events.topics[topic] if topic >= 0 else "",
                events.subscriptions[subscription] if subscription >= 0 else "",
                events.clients[client] if client >= 0 else "",
                int(events.ledger_id[row]),
                int(events.entry_id[row]),
                int(events.batch_size[row]),
                piece,
                row,
            )
        )
    whole = (batches < 0) & (events.batch_size[messages] > 1)
    return Scanned(
        int(times.max()) if len(times) else 0,
        int(batches.max()) if len(batches) else -1,
        controls,
        bool(whole.any()),
    )


def facts_of(settings: AuditSettings, scanned: Iterable[Scanned]) -> Facts:
    found = list(scanned)
    until_ms = settings.until_ms
    if until_ms is None:
        until_ms = max((one.last_ms for one in found), default=0)
    index_max = max((one.batch_index_max for one in found), default=-1)
    by_entry = (
        any(one.has_whole_batches for one in found) if settings.level == "auto" else settings.level == "entry"
    )
    batch_bits = 0 if by_entry else max(index_max, 0).bit_length()
    controls = sorted(
        (control for one in found for control in one.controls), key=lambda c: (c.time_ms, c.piece, c.row)
    )
    return Facts(settings, until_ms, batch_bits, tuple(controls), by_entry)
