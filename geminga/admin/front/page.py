"""The page at `/` as HTML. Pure; everything that a client has chosen is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from geminga import __version__
from geminga.admin.front.due_picture import due_picture
from geminga.admin.front.markup import (
    Row,
    at_least,
    bullets,
    bytes_text,
    count_text,
    counted,
    document,
    facts,
    messages_text,
    note,
    page_time_text,
    printable,
    rate_text,
    row_html,
    section,
    shown,
    span_text,
    subscription_name,
    table,
    topic_link,
)
from geminga.admin.front.overview import EVENT_KINDS, DelayedRow, DueTimes, Kept, Overview
from geminga.admin.front.topic_rows import ROWS_MAX, SORTS, Chosen, Query, TopicRow
from geminga.events.event import Event
from geminga.events.kinds import KINDS

NAMESPACES_MAX: Final = 20
"""Rows."""
LINKS: Final = (
    ("/metrics", "metrics for Prometheus"),
    ("/geminga/health", "the health check, with reasons"),
    ("/geminga/events", "events: what happened, in order"),
    ("/geminga/openapi.json", "all routes of the admin API"),
    ("/geminga/unserved", "requests that no route serves"),
    ("/admin/v2/clusters", "clusters"),
    ("/admin/v2/tenants", "tenants"),
    ("/admin/v2/namespaces/public", "namespaces of the tenant public"),
    ("/admin/v2/brokers/configuration/runtime", "configuration"),
)
LABELS: Final = dict(
    zip(
        SORTS,
        ("topic", "in/s", "out/s", "backlog", "delayed", "unacked", "producers", "consumers", "stored"),
        strict=True,
    )
)
DELAYED_COLUMNS: Final = (
    "subscription",
    "not yet due",
    "overdue",
    "growing",
    "sealed buckets",
    "lost",
    "rebuilt",
    "state",
)
_KEPT_BY: Final = {"request": "a request for compaction", "threshold": "a compaction threshold"}


def page(
    found: Overview, chosen: Chosen, rows_html: str, query: Query, service_url: str, *, for_operator: bool
) -> str:
    """The whole document. `rows_html` are the chosen rows, of `topic_rows_html`. `for_operator`: with what
    names files of the broker's machine, and events.
    """
    head = (
        f"<h1>Geminga {escape(__version__)}</h1>"
        f'<p class="note">Clients connect to <code>{escape(service_url)}</code></p>'
        '<nav aria-label="Parts of this page"><ul><li><a href="#topics">Topics</a></li>'
        '<li><a href="#delayed">Delayed messages</a></li><li><a href="#events">Events</a></li>'
        '<li><a href="#more">More</a></li></ul></nav>'
    )
    parts = (
        section("state", "State", _state(found, for_operator=for_operator), is_wide=True),
        section(
            "topics",
            f"Topics by {escape(LABELS[query.sort])}",
            _topics(found, chosen, rows_html, query),
            is_wide=True,
        ),
        section("delayed", "Delayed messages", _delayed(found), is_wide=True),
        _unserved(found),
        _namespaces(found),
        _kept(found.kept),
        section("events", "Latest events", _events(found.events, for_operator=for_operator)),
        section("more", "More", _links()),
    )
    return document("Geminga", head, "".join(parts))


def _state(found: Overview, *, for_operator: bool) -> str:
    unread = ""
    if found.topics_unread:
        text = (
            f"Nothing is known of {counted(found.topics_unread, 'topic')} yet: the broker has just started."
        )
        unread = f'<p class="wrong" role="status">{text}</p>'
    return unread + _wrong(found) + _losses(found.losses) + _facts(found, for_operator=for_operator)


def _wrong(found: Overview) -> str:
    if not found.wrong:
        return '<p class="well" role="status">Everything that is checked is well.</p>'
    wrongs = len(found.wrong) + found.wrong_left_out
    more = note(f"{counted(found.wrong_left_out, 'more')} left out here.") if found.wrong_left_out else ""
    is_wrong = "One thing is wrong" if wrongs == 1 else f"{wrongs:,} things are wrong"
    return f'<div class="wrong"><b role="status">{is_wrong}</b>{bullets(found.wrong)}{more}</div>'


def _losses(losses: Sequence[str]) -> str:
    return f'<div class="wrong"><b>Since the start</b>{bullets(losses)}</div>' if losses else ""


def _facts(found: Overview, *, for_operator: bool) -> str:
    memory, totals, disk = found.memory, found.totals, found.disk
    pairs = [
        ("topics", f"{count_text(found.topics)}, {count_text(found.topics_loaded)} loaded"),
        ("connections", count_text(found.connections)),
        ("messages in", f"{rate_text(totals.rate_in)}/s"),
        ("messages out", f"{rate_text(totals.rate_out)}/s"),
        ("backlog", counted(totals.backlog, "entry", "entries")),
        ("delayed", messages_text(totals.delayed, found.unread_entries)),
        ("not read yet", counted(found.unread_entries, "entry", "entries")),
        ("backlogs without a consumer", count_text(found.unserved_subscriptions)),
        ("stored", bytes_text(totals.storage_bytes)),
        ("memory", f"{bytes_text(memory.resident_bytes)} of {bytes_text(memory.budget_bytes)}"),
        ("up for", span_text(found.uptime_s * 1000)),
    ]
    if disk is not None:
        pairs.append(("disk free", f"{bytes_text(disk.free_bytes)} of {bytes_text(disk.total_bytes)}"))
        if for_operator:
            pairs.append(("data directory", printable(disk.data_directory)))
            if disk.fullest_directory != disk.data_directory:
                pairs.append(("fullest disk", printable(disk.fullest_directory)))
    clock = "virtual clock" if found.clock_is_virtual else "figures of"
    pairs.append((clock, page_time_text(found.at_ms)))
    return facts(pairs)


# -- topics ----------------------------------------------------------------------------------------------


def _topics(found: Overview, chosen: Chosen, rows_html: str, query: Query) -> str:
    if not found.topics:
        return (
            "<p>There is no topic. Send a first message: <code>geminga produce my-topic -m hello</code></p>"
        )
    return (
        _form(query)
        + table(
            tuple(LABELS.values()),
            rows_html,
            foot=_topic_row(found.totals, escape(found.totals.name)),
            head_html=[_sort_header(query, sort) for sort in SORTS],
        )
        + _left_out(found, chosen, query)
    )


def topic_rows_html(rows: Sequence[TopicRow]) -> str:
    """Rows of the table of topics: a millisecond for twenty."""
    columns = tuple(LABELS.values())
    return "".join(row_html(_topic_row(row, topic_link(row.name)), columns) for row in rows)


def _topic_row(row: TopicRow, name_html: str) -> Row:
    cells = (
        rate_text(row.rate_in),
        rate_text(row.rate_out),
        count_text(row.backlog),
        at_least(row.delayed, row.unread),
        *map(count_text, (row.unacked, row.producers, row.consumers)),
        bytes_text(row.storage_bytes),
    )
    return Row(row.name, name_html, cells)


def _sort_header(query: Query, sort: str) -> str:
    is_sorted = ""
    if sort == query.sort:
        is_sorted = f' aria-sort="{"ascending" if sort == "topic" else "descending"}"'
    target = escape(query._replace(sort=sort).target())
    return f'<th scope="col"{is_sorted}><a href="{target}">{LABELS[sort]}</a></th>'


def _form(query: Query) -> str:
    def options(values: Sequence[tuple[str, str]], chosen: str) -> str:
        return "".join(
            f'<option value="{value}"{" selected" if value == chosen else ""}>{label}</option>'
            for value, label in values
        )

    limits = [(str(limit), str(limit)) for limit in sorted({20, 50, 100, ROWS_MAX, query.limit})]
    return (
        '<form role="search" aria-label="Topics" action="/#topics">'
        f'<label>Part of a name <input type="search" name="q" value="{escape(query.search)}"></label>'
        f'<label>Namespace <input name="namespace" value="{escape(query.namespace)}" '
        'placeholder="tenant/namespace"></label>'
        f'<label>By <select name="sort">{options(list(LABELS.items()), query.sort)}</select></label>'
        f'<label>Rows <select name="limit">{options(limits, str(query.limit))}</select></label>'
        "<button>Show</button></form>"
    )


def _left_out(found: Overview, chosen: Chosen, query: Query) -> str:
    texts = []
    if query.search or query.namespace:
        are = "One topic fits." if chosen.matching == 1 else f"{chosen.matching:,} topics fit."
        texts.append(f'{are} <a href="/#topics">Show all</a>')
    if left_out := chosen.matching - len(chosen.rows):
        texts.append(f"{counted(left_out, 'more topic')} {'is' if left_out == 1 else 'are'} not listed.")
        if query.limit < ROWS_MAX:
            texts.append(f'<a href="{escape(query._replace(limit=ROWS_MAX).target())}">List {ROWS_MAX}</a>')
    if found.topics > len(found.rows):
        texts.append(f"Only {len(found.rows):,} topics can be searched.")
    return f'<p class="note">{" ".join(texts)}</p>' if texts else ""


def _namespaces(found: Overview) -> str:
    if not found.namespaces:
        return ""
    named = sorted(found.namespaces.items(), key=lambda pair: (-pair[1].topics, pair[0]))
    rows = (
        Row(
            name,
            f'<a href="{escape(Query(namespace=name).target())}">{shown(name)}</a>',
            (*map(count_text, figures[:2]), at_least(figures.delayed, figures.unread)),
        )
        for name, figures in named[:NAMESPACES_MAX]
    )
    left_out = len(named) - NAMESPACES_MAX
    more = note(f"{counted(left_out, 'namespace')} with fewer topics left out.") if left_out > 0 else ""
    columns = ("namespace", "topics", "backlog", "delayed")
    return section("namespaces", "Namespaces", table(columns, rows) + more)


def _unserved(found: Overview) -> str:
    if not found.unserved:
        return ""
    rows = (
        Row(
            f"{one.topic} {one.subscription}",
            subscription_name(one.topic, one.subscription),
            (count_text(one.entries), count_text(one.unread)),
        )
        for one in found.unserved
    )
    left_out = found.unserved_subscriptions - len(found.unserved)
    more = f" {counted(left_out, 'subscription')} with smaller backlogs left out." if left_out else ""
    advice = "Start their consumers, or delete a subscription that nothing reads."
    if any(one.unread for one in found.unserved):
        advice = "Entries that are not read yet may be delayed messages that wait for their time."
    columns = ("subscription", "entries", "not read yet")
    return section("unserved", "Backlogs without a consumer", table(columns, rows) + note(advice + more))


def _kept(kept: Kept) -> str:
    if not kept.topics:
        return ""
    rows = (Row(name, topic_link(name), (_KEPT_BY[by], bytes_text(size))) for size, name, by in kept.largest)
    topics = "One topic keeps" if kept.topics == 1 else f"{kept.topics:,} topics keep"
    text = (
        f'<p class="note">{topics} all messages, {bytes_text(kept.stored_bytes)}, because this broker does '
        "not compact topics. To give that up, remove the compaction threshold, or delete the subscription "
        "<code>__compaction</code> of the topic.</p>"
    )
    body = text + table(("topic", "because of", "stored"), rows, texts=frozenset({1}))
    return section("kept", "Kept for compaction", body)


# -- delayed messages ------------------------------------------------------------------------------------


def _delayed(found: Overview) -> str:
    if not found.delayed and (found.unread_entries or found.topics_unread):
        return note(
            "No message is known to be delayed. Entries that were not read since the start may be: "
            f"{count_text(found.unread_entries)}. The first consumer of a subscription reads them."
        )
    if not found.delayed:
        return note("No message is delayed.")
    buckets = found.buckets
    pairs = (
        ("delayed", messages_text(found.totals.delayed, found.unread_entries)),
        ("in growing parts", counted(buckets.growing, "message")),
        ("sealed", counted(buckets.sealed, "bucket")),
        ("lost since the load", counted(buckets.lost, "bucket")),
        ("rebuilt", counted(buckets.rebuilt, "bucket")),
        ("being read again", counted(found.reading_again, "subscription")),
    )
    left_out = found.delayed_subscriptions - len(found.delayed)
    more = (
        note(f"{counted(left_out, 'subscription')} with fewer delayed messages left out.") if left_out else ""
    )
    rows = table(DELAYED_COLUMNS, map(_delayed_row, found.delayed), texts=frozenset({7}))
    return facts(pairs) + _due(found.due, found.at_ms) + rows + more


def _delayed_row(row: DelayedRow) -> Row:
    buckets = row.buckets
    figures: tuple[str, ...] = ("-",) * 4
    if buckets is not None:
        figures = tuple(
            map(count_text, (buckets.growing, buckets.serving, sum(buckets.lost.values()), buckets.rebuilt))
        )
    state = (
        "in memory only"
        if buckets is None
        else "buckets shared by the topic"
        if row.is_shared
        else "complete"
    )
    if row.reads_again is not None:
        state = "to be read again: ledgers {} to {}".format(*row.reads_again)
    not_due, overdue = count_text(max(row.delayed - row.overdue, 0)), count_text(row.overdue)
    name = subscription_name(row.topic, row.subscription)
    return Row(f"{row.topic} {row.subscription}", name, (not_due, overdue, *figures, state))


def _due(due: DueTimes | None, now_ms: int) -> str:
    if due is None:
        return ""
    last_ms = max(0, due.classes[-1][0] + due.width_ms - now_ms)
    text = f"Of {counted(due.subscriptions, 'subscription')}; the last is due within {span_text(last_ms)}."
    if due.left_out:
        text += f" {counted(due.left_out, 'subscription')} with fewer delayed messages left out."
    return due_picture(due, now_ms) + note(text)


# -- the rest --------------------------------------------------------------------------------------------


def _events(events: Sequence[Event], *, for_operator: bool) -> str:
    if not for_operator:
        return (
            '<p class="note">Events are shown on the broker\'s own machine, at its loopback address, and by '
            "<code>geminga events</code> with the operator's token.</p>"
        )
    items = "".join(f'<li data-key="{event.sequence}">{_event(event)}</li>' for event in events)
    return (
        (f'<ul class="events">{items}</ul>' if items else note("Nothing has happened since the start."))
        + f'<p class="note">Left out: {", ".join(sorted(KINDS.keys() - EVENT_KINDS))}. '
        "<code>geminga events</code> shows them, too; "
        '<a href="/geminga/events">/geminga/events</a> has all of them, as JSON.</p>'
    )


def _count(name: str, number: int) -> str:
    if name.endswith("_ms"):
        return f"{escape(name.removesuffix('_ms'))} {page_time_text(number)}"
    return f"{escape(name.replace('_', ' '))} {number:,}"


def _event(event: Event) -> str:
    about = []
    if event.topic:
        about.append(
            topic_link(event.topic) if event.topic.startswith("persistent://") else shown(event.topic)
        )
    if event.subscription:
        about.append(f"subscription {shown(event.subscription)}")
    if event.bucket >= 0:
        about.append(f"bucket in ledger {event.bucket}")
    about += [_count(name, number) for name, number in event.counts.items()]
    if event.times > 1:
        about.append(f"{event.times:,} times")
    if event.text:
        about.append(shown(event.text))
    kind = KINDS.get(event.kind)
    words = f" {escape(kind.text)}" if kind is not None else ""
    details = f"<br><small>{'; '.join(about)}</small>" if about else ""
    when = f'<time class="note">{page_time_text(event.time_ms)}</time>'
    return f"{when} <b>{escape(event.kind)}</b>{words}{details}"


def _links() -> str:
    items = "".join(f'<li><a href="{path}">{path}</a> {text}</li>' for path, text in LINKS)
    return f"<ul>{items}</ul>"
