"""Pieces of HTML that the pages share. Pure; everything that a client has chosen is escaped.

`TEXT` in names of parameters: plain text, which is escaped here; `html`: markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final, NamedTuple
from urllib.parse import quote

from geminga import __version__
from geminga.admin.front.script import PATH as SCRIPT_PATH
from geminga.admin.front.style import BROAD_COLUMNS, STYLE

NAME_CHARS_MAX: Final = 200
"""Characters of a name that are shown; the whole name is in its link."""
ZEROS: Final = frozenset({"0", "0.0", "0 B", "-", ""})
ALWAYS: Final = frozenset({"backlog", "consumers", "state"})
"""Columns whose zeros are shown on cards, too."""
_UNITS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))


class Row(NamedTuple):
    key: str
    """Tells the row from others of its table, whatever their order."""
    name_html: str
    cells: Sequence[str]
    """Text: figures, or short words."""


def document(title: str, head_html: str, main_html: str) -> str:
    """`head_html` stands in the header; `main_html` is what the script renews."""
    return (
        f'<!doctype html>\n<html lang="en" data-version="{escape(__version__)}"><head><meta charset="utf-8">'
        f'<title>{escape(title)}</title><meta name="viewport" content="width=device-width">'
        f'<link rel="icon" href="data:,"><style>{STYLE}</style>'
        f'<script src="{SCRIPT_PATH}" defer></script></head>'
        f'<body><header>{head_html}<p id="refresh" class="note"><a href="">Reload</a></p>'
        '<p id="told" role="status"></p></header>'
        f'<main id="main" tabindex="-1">{main_html}</main></body></html>\n'
    )


def section(key: str, title_html: str, body_html: str, *, is_wide: bool = False) -> str:
    wide = ' class="wide"' if is_wide else ""
    return (
        f'<section id="{escape(key)}"{wide} aria-labelledby="{escape(key)}-title">'
        f'<h2 id="{escape(key)}-title">{title_html}</h2>{body_html}</section>'
    )


def table(
    columns: Sequence[str],
    rows: Iterable[Row] | str,
    *,
    foot: Row | None = None,
    head_html: Sequence[str] = (),
    texts: frozenset[int] = frozenset(),
) -> str:
    """`columns` are labels, the first one that of the names; `head_html` are header cells in place of them;
    `texts` the numbers of the columns, from 1, that are no figures. `rows` may be HTML, of `row_html`.
    """
    head = "".join(
        head_html
        or (
            f'<th scope="col"{" class=text" if number in texts else ""}>{escape(label)}</th>'
            for number, label in enumerate(columns)
        )
    )
    body = rows if isinstance(rows, str) else "".join(row_html(row, columns, texts) for row in rows)
    tail = f"<tfoot>{row_html(foot, columns, texts)}</tfoot>" if foot is not None else ""
    broad = ' class="broad"' if len(columns) >= BROAD_COLUMNS else ""
    return f"<table{broad}><thead><tr>{head}</tr></thead><tbody>{body}</tbody>{tail}</table>"


def row_html(row: Row, columns: Sequence[str], texts: frozenset[int] = frozenset()) -> str:
    cells = []
    for number, (label, text) in enumerate(zip(columns[1:], row.cells, strict=True), 1):
        classes = "text" if number in texts else ""
        if text in ZEROS and label not in ALWAYS:
            classes += " zero"
        attribute = f' class="{classes.strip()}"' if classes else ""
        cells.append(f'<td{attribute} data-label="{escape(label)}">{escape(text)}</td>')
    return f'<tr data-key="{escape(row.key)}"><th scope="row">{row.name_html}</th>{"".join(cells)}</tr>'


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    return f"<dl>{''.join(f'<div><dt>{escape(a)}</dt><dd>{escape(b)}</dd></div>' for a, b in pairs)}</dl>"


def note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'


def bullets(texts: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(printable(text))}</li>' for text in texts)}</ul>"


def printable(text: str) -> str:
    """With control characters written out, as `\\x1b` or `\\u202e`: they could make one name look like
    another.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "replace").decode() for c in text)


def shown(name: str) -> str:
    """A name as HTML, on one line, cut if it is very long."""
    text = printable(name)
    return escape(text if len(text) <= NAME_CHARS_MAX else f"{text[:NAME_CHARS_MAX]}…")


def short(topic: str) -> str:
    """A topic's name without `persistent://`, which all have; clients and commands take it, too."""
    return topic.removeprefix("persistent://")


def topic_path(root: str, topic: str) -> str:
    """`root`/persistent/tenant/namespace/topic"""
    domain, _, rest = topic.partition("://")
    return f"{root}/" + "/".join(quote(part, safe="") for part in (domain, *rest.split("/", 2)))


def topic_link(topic: str) -> str:
    """To the page of the topic."""
    return f'<a href="{escape(topic_path("/geminga/topics", topic))}">{shown(short(topic))}</a>'


def subscription_name(topic: str, subscription: str) -> str:
    """HTML that names a subscription, and leads to the page of its topic."""
    return f"{topic_link(topic)} <small>subscription</small> {shown(subscription)}"


def count_text(number: float) -> str:
    return f"{number:,.0f}"


def at_least(number: float, unread: float) -> str:
    """So many, and perhaps some of the entries that are not read yet: `5`, `5 or more`, `unknown`"""
    if not unread:
        return count_text(number)
    return f"{count_text(number)} or more" if number else "unknown"


def messages_text(number: float, unread: float) -> str:
    """`1 message`, or as `at_least`"""
    return at_least(number, unread) if unread else counted(number, "message")


def counted(number: float, one: str, several: str = "") -> str:
    """`1 topic`, `2,000 topics`"""
    return f"{number:,.0f} {one if number == 1 else several or one + 's'}"


def rate_text(per_second: float) -> str:
    return f"{per_second:.1f}" if per_second < 100 else f"{per_second:,.0f}"


def bytes_text(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def span_text(span_ms: float) -> str:
    """`45 s`, `1.5 h`, `30 d`"""
    for unit_ms, name in _UNITS:
        if span_ms >= unit_ms:
            return f"{span_ms / unit_ms:.1f}".removesuffix(".0") + f" {name}"
    return f"{span_ms:.0f} ms"


def page_time_text(at_ms: int) -> str:
    """`2026-11-26 20:11:36Z`; beyond the year 9999 the number itself."""
    try:
        return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%SZ}"
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"
