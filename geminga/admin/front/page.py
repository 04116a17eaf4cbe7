"""The page at `/` as HTML. Pure; everything that a client has chosen is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final
from urllib.parse import quote

from geminga import __version__
from geminga.admin.front.due_picture import due_picture, span_text
from geminga.admin.front.overview import DueTimes, Kept, Overview, TopicRow

REFRESH_S: Final = 5
LINKS: Final = (
    ("/metrics", "metrics for Prometheus"),
    ("/geminga/health", "the health check, with reasons"),
    ("/geminga/events", "events: what happened, in order"),
    ("/geminga/openapi.json", "all routes of the admin API"),
    ("/geminga/unserved", "requests that no route serves"),
    ("/admin/v2/clusters", "clusters"),
    ("/admin/v2/tenants", "tenants"),
    ("/admin/v2/persistent/public/default", "topics of public/default"),
    ("/admin/v2/brokers/configuration/runtime", "configuration"),
)
COLUMNS: Final = (
    "topic",
    "in/s",
    "out/s",
    "backlog",
    "delayed",
    "unacked",
    "producers",
    "consumers",
    "stored",
)
_STYLE: Final = """
body{font:15px/1.45 system-ui,sans-serif;margin:1.5rem auto;max-width:76rem;padding:0 1rem;color:#1c2430}
h1{font-size:1.35rem;margin:0}h2{font-size:1.05rem;margin:1.4rem 0 .4rem}
.facts{display:flex;flex-wrap:wrap;gap:.3rem 2rem;margin:.8rem 0}.facts b{display:block;font-size:1.25rem}
.well{color:#17693a}
.wrong{background:#fdecea;border-left:4px solid #b3261e;padding:.5rem .8rem;margin:.8rem 0}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%}
th,td{text-align:right;padding:.2rem .6rem;border-bottom:1px solid #dfe3e8;white-space:nowrap}
th:first-child,td:first-child{text-align:left;white-space:normal;overflow-wrap:anywhere}
tfoot td{font-weight:600}svg{width:100%;max-width:720px}rect{fill:#2f6fb3}path{stroke:#8a94a0}
text{font-size:11px;fill:#4a5563}a{color:#1f5c99}.note{color:#5a6573}
@media(prefers-color-scheme:dark){body{background:#14181d;color:#dde3ea}a{color:#7fb2e5}
.wrong{background:#3a1c1a}th,td{border-color:#2c333b}text,.note{fill:#a3adb8;color:#a3adb8}.well{color:#6fce97}}
"""
_KEPT_BY: Final = {"request": "a request for compaction", "threshold": "a compaction threshold"}
# Names come from clients: even one that escaped its text could neither run a script nor load anything.
CONTENT_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"


def page(found: Overview, service_url: str) -> str:
    """The whole document; a browser loads it again every `REFRESH_S` seconds."""
    return "".join(
        (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Geminga</title>',
            f'<meta http-equiv="refresh" content="{REFRESH_S}">',
            '<meta name="viewport" content="width=device-width">',
            f"<style>{_STYLE}</style></head><body>",
            f"<h1>Geminga {escape(__version__)}</h1>",
            f'<p class="note">Clients connect to <code>{escape(service_url)}</code>.</p>',
            _wrong(found.wrong),
            _facts(found),
            _topics(found),
            _kept(found.kept),
            _due(found.due, found.at_ms),
            _links(),
            "</body></html>\n",
        )
    )


def _wrong(wrong: Sequence[str]) -> str:
    if not wrong:
        return '<p class="well">Everything that is checked is well.</p>'
    return (
        f'<div class="wrong"><b>Wrong</b><ul>{"".join(f"<li>{escape(one)}</li>" for one in wrong)}</ul></div>'
    )


def _facts(found: Overview) -> str:
    memory, totals = found.memory, found.totals
    facts = (
        ("loaded topics", f"{found.topics:,}"),
        ("connections", f"{found.connections:,}"),
        ("messages in", f"{_rate(totals.rate_in)}/s"),
        ("messages out", f"{_rate(totals.rate_out)}/s"),
        ("backlog", f"{totals.backlog:,}"),
        ("delayed", f"{totals.delayed:,}"),
        ("stored", _bytes(totals.storage_bytes)),
        ("memory", f"{_bytes(memory.resident_bytes)} of {_bytes(memory.budget_bytes)}"),
    )
    return f'<div class="facts">{"".join(f"<div>{name}<b>{value}</b></div>" for name, value in facts)}</div>'


def _topics(found: Overview) -> str:
    if not found.rows:
        return (
            "<h2>Topics</h2><p>No topic is loaded. Send a first message: "
            "<code>geminga produce my-topic -m hello</code></p>"
        )
    head = "".join(f"<th>{name}</th>" for name in COLUMNS)
    rows = "".join(f"<tr>{_cells(row, _link(row.name))}</tr>" for row in found.rows)
    foot = f"<tr>{_cells(found.totals, escape(found.totals.name))}</tr>"
    left_out = found.topics - len(found.rows)
    note = (
        f'<p class="note">{left_out:,} topics with smaller backlogs are not listed.</p>' if left_out else ""
    )
    return (
        f'<h2>Topics by backlog</h2><div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody><tfoot>{foot}</tfoot></table></div>{note}"
    )


def _cells(row: TopicRow, name: str) -> str:
    values = (
        _rate(row.rate_in),
        _rate(row.rate_out),
        *(f"{count:,}" for count in row[3:8]),
        _bytes(row.storage_bytes),
    )
    return f"<td>{name}</td>" + "".join(f"<td>{value}</td>" for value in values)


def _link(topic: str) -> str:
    domain, _, rest = topic.partition("://")
    path = "/admin/v2/" + "/".join(quote(part, safe="") for part in [domain, *rest.split("/", 2)]) + "/stats"
    return f'<a href="{escape(path)}">{escape(topic)}</a>'


def _kept(kept: Kept) -> str:
    if not kept.topics:
        return ""
    rows = "".join(
        f"<tr><td>{_link(name)}</td><td>{_KEPT_BY[by]}</td><td>{_bytes(size)}</td></tr>"
        for size, name, by in kept.largest
    )
    topics = "One topic keeps" if kept.topics == 1 else f"{kept.topics:,} topics keep"
    return (
        f'<h2>Kept for compaction</h2><p class="note">{topics} all messages, {_bytes(kept.stored_bytes)}, '
        "because this broker does not compact topics. To give that up, remove the compaction threshold, or "
        "delete the subscription <code>__compaction</code> of the topic.</p>"
        '<div class="scroll"><table><thead><tr><th>topic</th><th>because of</th><th>stored</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _due(due: DueTimes | None, now_ms: int) -> str:
    if due is None:
        return '<h2>Delayed messages</h2><p class="note">No message is delayed.</p>'
    last_ms = max(0, due.classes[-1][0] + due.width_ms - now_ms)
    note = f"Of {due.subscriptions} subscriptions; the last is due within {span_text(last_ms)}."
    if due.subscriptions == 1:
        note = f"Of one subscription; the last is due within {span_text(last_ms)}."
    if due.left_out:
        note += f" {due.left_out:,} subscriptions with fewer delayed messages are left out."
    return f'<h2>Delayed messages by due time</h2>{due_picture(due, now_ms)}<p class="note">{note}</p>'


def _links() -> str:
    items = "".join(f'<li><a href="{path}">{path}</a> {text}</li>' for path, text in LINKS)
    return f"<h2>More</h2><ul>{items}</ul>"


def _rate(per_second: float) -> str:
    return f"{per_second:.1f}" if per_second < 100 else f"{per_second:,.0f}"


def _bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
