"""The page of one topic as HTML. Pure; everything that a client has chosen is escaped."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from html import escape
from typing import Final

from geminga import __version__
from geminga.admin.front.markup import (
    Row,
    at_least,
    bytes_text,
    count_text,
    counted,
    document,
    facts,
    note,
    page_time_text,
    rate_text,
    section,
    short,
    shown,
    table,
    topic_link,
    topic_path,
)
from geminga.admin.front.topic_look import PARTITIONS_MAX, SubscriptionLook, TopicLook
from geminga.broker.flow.statistics import TopicStatistics
from geminga.broker.operator.delayed_statistics import BucketInfo

CLIENTS_MAX: Final = 20
"""Consumers of each subscription, and producers, that are listed."""
NOT_LOADED: Final = (
    "No client has used this topic since the start, so it is not loaded: these are the figures of its "
    "records. Any entry of a backlog may be delayed. The commands below load it."
)
DEFAULT_SERVICE_URLS: Final = ("pulsar://localhost:6650", "pulsar://127.0.0.1:6650")


def topic_page(look: TopicLook, service_url: str) -> str:
    """The whole document."""
    head = (
        f'<h1>{shown(look.name)}</h1><nav aria-label="Pages"><ul><li><a href="/">Geminga '
        f"{escape(__version__)}: all topics</a></li></ul></nav>"
    )
    return document(f"{short(look.name)[:100]} - Geminga", head, _main(look, service_url))


def _main(look: TopicLook, service_url: str) -> str:
    if look.partitions:
        links = "".join(
            f"<li>{topic_link(f'{look.name}-partition-{number}')}</li>"
            for number in range(min(look.partitions, PARTITIONS_MAX))
        )
        more = look.partitions - PARTITIONS_MAX
        parts = [section("topic", f"{counted(look.partitions, 'partition')}", f"<ul>{links}</ul>")]
        if more > 0:
            parts.append(note(f"{counted(more, 'partition')} left out."))
    elif look.figures is None:
        text = "Nothing is known of this topic yet: the broker has just started."
        parts = [section("topic", "Not read yet", f"<p>{text} The commands below load it.</p>")]
    else:
        parts = [] if look.figures.is_loaded else [note(NOT_LOADED)]
        parts += [section("topic", "Topic", _facts(look, look.figures), is_wide=True)]
        parts += _subscriptions(look, look.figures)
        parts.append(_producers(look.figures))
    parts.append(section("commands", "To go on", _commands(look, service_url)))
    return "".join(parts)


def _facts(look: TopicLook, figures: TopicStatistics) -> str:
    return facts(
        (
            ("messages in", f"{rate_text(figures.msg_rate_in)}/s"),
            ("messages in since the load", count_text(figures.msg_in_counter)),
            ("stored", bytes_text(figures.storage_size)),
            ("subscriptions", count_text(len(figures.subscriptions))),
            ("producers", count_text(len(figures.publishers))),
            ("figures of", page_time_text(look.at_ms)),
        )
    )


def _subscriptions(look: TopicLook, figures: TopicStatistics) -> list[str]:
    columns = ("subscription", "type", "backlog", "not yet due", "overdue", "unacked", "out/s", "consumers")
    rows = [Row(one.figures.name, shown(one.figures.name), _cells(one)) for one in look.subscriptions]
    left_out = len(figures.subscriptions) - len(rows)
    more = note(f"{counted(left_out, 'subscription')} with smaller backlogs left out.") if left_out else ""
    listed = table(columns, rows, texts=frozenset({1})) if rows else note("No subscription.")
    explained = note("The backlog counts entries, of which a batch is one. Overdue: due, and not delivered.")
    return [
        section("subscriptions", "Subscriptions", listed + more + explained, is_wide=True),
        *(_detail(number, one) for number, one in enumerate(look.subscriptions)),
    ]


def _cells(one: SubscriptionLook) -> tuple[str, ...]:
    figures, delayed = one.figures, one.delayed
    due = delayed.due if delayed is not None else 0
    waiting = delayed.messages if delayed is not None else figures.msg_delayed
    return (
        "-" if figures.type == "None" else figures.type,
        count_text(figures.msg_backlog),
        at_least(max(waiting - due, 0), figures.unread_entries),
        at_least(due, figures.unread_entries),
        count_text(figures.unacked_messages),
        rate_text(figures.msg_rate_out),
        count_text(len(figures.consumers)),
    )


def _detail(number: int, one: SubscriptionLook) -> str:
    """Consumers and buckets of one subscription; nothing if it has neither."""
    consumers = one.figures.consumers
    parts = []
    if consumers:
        columns = ("consumer", "from", "permits", "unacked", "out/s", "since")
        rows = (
            Row(
                str(place),
                shown(consumer.consumer_name),
                (
                    consumer.address,
                    count_text(consumer.available_permits),
                    count_text(consumer.unacked_messages),
                    rate_text(consumer.msg_rate_out),
                    page_time_text(consumer.connected_since),
                ),
            )
            for place, consumer in enumerate(consumers[:CLIENTS_MAX])
        )
        parts.append(f"<h3>Consumers</h3>{table(columns, rows, texts=frozenset({1, 5}))}")
        parts.append(_more(len(consumers) - CLIENTS_MAX, "consumer"))
    if one.delayed is not None:
        parts.append(f"<h3>Delayed index</h3>{_buckets(one)}")
    if not parts:
        return ""
    return section(f"of-{number}", f"Subscription {shown(one.figures.name)}", "".join(parts), is_wide=True)


def _buckets(one: SubscriptionLook) -> str:
    delayed = one.delayed
    assert delayed is not None
    pairs = [
        ("not yet due", count_text(max(delayed.messages - delayed.due, 0))),
        ("overdue", count_text(delayed.due)),
        ("not read yet", count_text(delayed.unread)),
        ("sealed buckets", count_text(delayed.buckets)),
        ("on disk", bytes_text(delayed.bucket_bytes)),
    ]
    if delayed.next_due_ms is not None:
        at = page_time_text(delayed.next_due_ms)
        pairs.append(("next due", f"now, since {at} or before" if delayed.due else at))
    columns = ("part", "state", "in ledger", "wait", "not read", "bytes", "first due", "last due")
    rows = (_bucket_row(number, bucket) for number, bucket in enumerate(one.buckets))
    listed = table(columns, rows, texts=frozenset({1, 6, 7})) if one.buckets else ""
    buckets = one.figures.delayed_buckets
    lost = sum(buckets.lost.values()) if buckets is not None else 0
    told = ""
    if lost and buckets is not None:
        told = note(
            f"{counted(lost, 'bucket')} lost since the load, {buckets.read_again:,} messages read again, "
            f"{counted(buckets.rebuilt, 'bucket')} rebuilt. No message is lost."
        )
    return facts(pairs) + listed + _more(one.buckets_left_out, "part") + told


def _bucket_row(number: int, bucket: BucketInfo) -> Row:
    name = shown(bucket.range or "any")
    if bucket.why:
        name += f" <small>{escape(bucket.why)}</small>"
    times = (bucket.first_due_ms, bucket.last_due_ms)
    return Row(
        f"{bucket.state} {bucket.range or number}",
        name,
        (
            bucket.state,
            "-" if bucket.ledger_id is None else str(bucket.ledger_id),
            count_text(bucket.messages),
            count_text(bucket.not_read),
            bytes_text(bucket.bytes),
            *("-" if at_ms is None else page_time_text(at_ms) for at_ms in times),
        ),
    )


def _producers(figures: TopicStatistics) -> str:
    if not figures.publishers:
        return ""
    columns = ("producer", "from", "in/s", "since")
    rows = (
        Row(
            str(place),
            shown(one.producer_name),
            (one.address, rate_text(one.msg_rate_in), page_time_text(one.connected_since)),
        )
        for place, one in enumerate(figures.publishers[:CLIENTS_MAX])
    )
    more = _more(len(figures.publishers) - CLIENTS_MAX, "producer")
    return section("producers", "Producers", table(columns, rows, texts=frozenset({1, 3})) + more)


def _more(left_out: int, one: str) -> str:
    return note(f"{counted(left_out, one)} left out.") if left_out > 0 else ""


def _commands(look: TopicLook, service_url: str) -> str:
    """To paste into a shell, so quoted for it."""
    stats = "partitioned-stats" if look.partitions else "stats"
    json = (
        f'<p class="note"><a href="{escape(topic_path("/admin/v2", look.name))}/{stats}">All statistics, as '
        "JSON</a></p>"
    )
    some = look.subscriptions[0].figures.name if look.subscriptions else "SUBSCRIPTION"
    if not f"{look.name}{some}".isprintable():
        return note("A name has control characters, so no command is shown that could be pasted.") + json
    topic, subscription = shlex.quote(look.name), shlex.quote(some)
    lines = [
        f"geminga topics {stats} {topic}",
        f"geminga peek {topic} -s {subscription}",
        f"geminga delayed summary {topic} -s {subscription}",
        f"geminga delayed buckets {topic} -s {subscription}",
        f"geminga events --topic {topic}",
    ]
    if service_url not in DEFAULT_SERVICE_URLS:
        lines.insert(0, f"export GEMINGA_URL={shlex.quote(service_url)}")
    return f"{_pre(lines)}{json}"


def _pre(lines: Iterable[str]) -> str:
    # Focusable, as a reader may have to scroll it.
    return f"<pre>{escape(chr(10).join(lines))}</pre>"
