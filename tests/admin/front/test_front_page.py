"""The page at `/` for a browser: what it shows, its bounded size, and no markup that a client wrote."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from geminga.admin.front.due_picture import BARS, due_picture, span_text
from geminga.admin.front.overview import DueTimes, Kept, Overview, TopicRow
from geminga.admin.front.page import page
from geminga.broker.flow.statistics import MemoryStatistics

NOW_MS = 1_800_000_000_000
MEMORY = MemoryStatistics(budget_bytes=256 << 20, resident_bytes=64 << 20, rocksdb_buffer_bytes=0, parts=[])
NOTHING_KEPT = Kept(0, 0, [])
EVIL = '"><script>alert(1)</script>&'


class Document(HTMLParser):
    """Tags, links and text; fails on tags that are left open."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        assert self._open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attributes if name == "href"]
        if tag not in {"meta", "path"}:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag != "path":
            assert self._open.pop() == tag

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += f" {data}"


def row(name: str, backlog: int = 0, delayed: int = 0) -> TopicRow:
    return TopicRow(name, 1.5, 2500.0, backlog, delayed, 7, 1, 2, 3 << 20)


def overview(
    *rows: TopicRow,
    wrong: tuple[str, ...] = (),
    due: DueTimes | None = None,
    topics: int = 0,
    kept: Kept = NOTHING_KEPT,
) -> Overview:
    totals = row("all topics", 12_345)
    return Overview(NOW_MS, list(wrong), topics or len(rows), list(rows), totals, 3, MEMORY, due, kept)


def test_what_is_shown() -> None:
    found = overview(row("persistent://public/default/orders", 1234), wrong=("the disk is full",), topics=23)
    document = Document(page(found, "pulsar://localhost:6650"))
    for text in (
        "pulsar://localhost:6650",
        "the disk is full",
        "1,234",
        "2,500",
        "3.0 MiB",
        "64.0 MiB of 256.0 MiB",
        "12,345",
        "22 topics with smaller backlogs are not listed.",
        "No message is delayed.",
    ):
        assert text in document.text
    assert "/admin/v2/persistent/public/default/orders/stats" in document.links


def test_a_broker_without_topics_says_how_to_begin() -> None:
    text = Document(page(overview(), "pulsar://localhost:6650")).text
    assert "Everything that is checked is well." in text
    assert "geminga produce my-topic -m hello" in text


def test_names_of_clients_are_text() -> None:
    found = overview(row(f"persistent://public/default/{EVIL}"), wrong=(EVIL,))
    document = Document(page(found, f"pulsar://{EVIL}"))
    assert "script" not in document.tags
    assert document.text.count("<script>alert(1)</script>") == 3
    assert all('"' not in link and "<" not in link for link in document.links)


def test_topics_that_keep_all_messages_are_named_with_the_reason() -> None:
    assert "Kept for compaction" not in Document(page(overview(), "pulsar://h")).text
    largest = [(2 << 30, f"persistent://public/default/{EVIL}", "request"), (5, "t", "threshold")]
    shown = Document(page(overview(kept=Kept(7, 3 << 30, largest)), "pulsar://h"))
    for text in (
        "7 topics keep all messages, 3.0 GiB",
        "a request for compaction",
        "2.0 GiB",
        "__compaction",
        EVIL,
    ):
        assert text in shown.text
    assert "script" not in shown.tags


@pytest.mark.parametrize("messages", [1, 1_000_000])
def test_bars_stand_where_messages_are_due(messages: int) -> None:
    hour_ms = 3_600_000
    due = DueTimes(60_000, [(NOW_MS - hour_ms, 5), (NOW_MS + 60 * hour_ms - 60_000, messages)], 1, 0)
    picture = due_picture(due, NOW_MS)
    document = Document(f"{picture}")
    assert document.tags.count("rect") == 2
    assert "5 messages are due in 0 ms to 1 h" in document.text
    assert f"{messages} messages are due in 2.5 d to 2.5 d" in document.text


def test_many_classes_are_a_bounded_picture() -> None:
    classes = [(NOW_MS + number * 60_000, number + 1) for number in range(1000)]
    assert due_picture(DueTimes(60_000, classes, 5, 2), NOW_MS).count("<rect") == BARS


@pytest.mark.parametrize(
    ("span_ms", "text"),
    [(0, "0 ms"), (1500, "1.5 s"), (90_000, "1.5 min"), (3_600_000, "1 h"), (30 * 86_400_000, "30 d")],
)
def test_spans_as_a_person_reads_them(span_ms: int, text: str) -> None:
    assert span_text(span_ms) == text
