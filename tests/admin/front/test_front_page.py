"""The pages for a browser: what they show, their bounded size, and no markup that a client wrote."""

from __future__ import annotations

import base64
import hashlib
import re
import shlex
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest

from geminga.admin.front.due_picture import BARS, due_picture
from geminga.admin.front.markup import page_time_text, printable, span_text
from geminga.admin.front.overview import Buckets, DelayedRow, DueTimes, Kept, Namespace, Overview, Unserved
from geminga.admin.front.page import page, topic_rows_html
from geminga.admin.front.style import CONTENT_POLICY
from geminga.admin.front.topic_look import TopicLook
from geminga.admin.front.topic_page import topic_page
from geminga.admin.front.topic_rows import ROWS_MAX, Chosen, Query, TopicRow, TopicRows
from geminga.broker.flow.statistics import BucketStatistics, DiskStatistics, MemoryStatistics, TopicStatistics
from geminga.events.event import Event

NOW_MS = 1_800_000_000_000
GIB = 1 << 30
MEMORY = MemoryStatistics(budget_bytes=256 << 20, resident_bytes=64 << 20, rocksdb_buffer_bytes=0, parts=[])
DISK = DiskStatistics(
    data_directory="/data", fullest_directory="/disk2", free_bytes=5 * GIB, total_bytes=9 * GIB
)
ALL = Query()
NOTHING_KEPT = Kept(0, 0, [])
EVIL = '"><script>alert(1)</script>&\u202e'
SEEN = '"><script>alert(1)</script>&\\u202e'
ORDERS = "persistent://public/default/orders"


class Document(HTMLParser):
    """Tags, links and text; fails on tags that are left open and on scripts within the document."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.style = ""
        self._open: list[str] = []
        self.feed(html)
        assert self._open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attributes if name == "href"]
        assert all(not name.startswith("on") and name != "style" for name, _ in attributes)
        if tag == "script":
            assert attributes == [("src", "/geminga/page.js"), ("defer", None)]
        if tag not in {"meta", "input", "link", "br"}:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] == ["script"]:
            raise AssertionError(data)
        if self._open[-1:] == ["style"]:
            self.style += data
        else:
            self.text += f" {data}"


def row(name: str, backlog: int = 0, delayed: int = 0) -> TopicRow:
    return TopicRow(name, 1.5, 2500.0, backlog, delayed, 7, 1, 2, 3 << 20)


def overview(*rows: TopicRow, topics: int = 0, **changed: Any) -> Overview:
    kept = TopicRows()
    for one in rows:
        kept.add(one)
    found = Overview(
        at_ms=NOW_MS,
        uptime_s=7200.0,
        clock_is_virtual=False,
        wrong=[],
        wrong_left_out=0,
        losses=[],
        topics=topics or len(rows),
        topics_loaded=len(rows),
        topics_unread=0,
        unread_entries=0,
        rows=kept,
        totals=row("all topics", 12_345),
        namespaces={},
        connections=3,
        memory=MEMORY,
        disk=DISK,
        buckets=Buckets(),
        reading_again=0,
        delayed=[],
        delayed_subscriptions=0,
        due=None,
        unserved=[],
        unserved_subscriptions=0,
        kept=NOTHING_KEPT,
        events=[],
    )
    return found._replace(**changed)


def drawn(found: Overview, *rows: TopicRow, query: Query = ALL, for_operator: bool = True) -> str:
    chosen = Chosen(list(rows), found.topics)
    body, url = topic_rows_html(rows), "pulsar://localhost:6650"
    return page(found, chosen, body, query, url, for_operator=for_operator)


def shown(found: Overview, *rows: TopicRow, **how: Any) -> Document:
    return Document(drawn(found, *rows, **how))


def test_what_is_not_known_yet_is_said() -> None:
    """After a restart nothing is said to be well that was not looked at."""
    document = shown(overview(topics=23, topics_unread=3, unread_entries=1200))
    assert "Nothing is known of 3 topics yet" in document.text
    assert "23, 0 loaded" in document.text
    assert "No message is known to be delayed. Entries that were not read since the start may be: 1,200" in (
        document.text
    )
    assert "No message is delayed." in shown(overview(row(ORDERS, 3))).text


def test_a_number_of_delayed_messages_that_is_not_known_is_not_0() -> None:
    """Nor is it advised to delete a subscription of which it is not known."""
    unknown, some = row(ORDERS, 30)._replace(unread=30), row(f"{ORDERS}2", 9, 4)._replace(unread=2)
    document = shown(
        overview(
            unknown,
            some,
            unread_entries=32,
            totals=row("all topics", 39, 4)._replace(unread=32),
            namespaces={"public/default": Namespace(2, 39, 4, 32)},
            unserved=[Unserved(30, ORDERS, "s", 30)],
            unserved_subscriptions=1,
        ),
        unknown,
        some,
    )
    assert document.text.count("unknown") == 1
    assert document.text.count("4 or more") == 4
    assert "delete" not in document.text
    assert "may be delayed messages that wait" in document.text
    known = overview(unserved=[Unserved(30, ORDERS, "s", 0)], unserved_subscriptions=1)
    assert "or delete a subscription that nothing reads" in shown(known).text


def test_what_is_shown() -> None:
    one = row(ORDERS, 1234)
    document = shown(overview(one, topics=23, wrong=["the disk is full"], losses=["2 entries"]), one)
    for text in (
        "pulsar://localhost:6650",
        "One thing is wrong",
        "the disk is full",
        "2 entries",
        "1,234",
        "2,500",
        "3.0 MiB",
        "64.0 MiB of 256.0 MiB",
        "12,345 entries",
        "5.0 GiB of 9.0 GiB",
        "/data",
        "/disk2",
        "2 h",
        "2027-01-15 08:00:00Z",
        "22 more topics are not listed.",
        "No message is delayed.",
    ):
        assert text in document.text
    assert "/geminga/topics/persistent/public/default/orders" in document.links
    assert f"/?limit={ROWS_MAX}#topics" in document.links


def test_the_policy_allows_the_style_and_no_script_in_a_page() -> None:
    digest = hashlib.sha256(shown(overview()).style.encode()).digest()
    assert f"style-src 'sha256-{base64.b64encode(digest).decode()}'" in CONTENT_POLICY
    assert "unsafe" not in CONTENT_POLICY


@pytest.mark.parametrize(
    "html", [drawn(overview()), topic_page(TopicLook(ORDERS, NOW_MS, 0, None, []), "pulsar://h")]
)
def test_all_of_a_page_is_within_landmarks(html: str) -> None:
    """A reader of the screen leaps from one to the next."""
    body = html.partition("<body>")[2].partition("</body>")[0]
    assert re.fullmatch(r"<header>((?!<header>).)*</header><main [^>]*>((?!<main).)*</main>", body, re.DOTALL)
    assert Document(html).tags.count("h1") == 1


def test_a_table_that_is_too_narrow_is_a_list_of_cards() -> None:
    style = shown(overview()).style
    for width in ("58rem", "34rem"):
        rule = style.partition(f"@container (max-width: {width}) {{")[2].partition("@container")[0]
        assert "thead { display: none }" in rule
        assert "content: attr(data-label)" in rule


def test_a_broker_without_topics_says_how_to_begin() -> None:
    text = shown(overview()).text
    assert "Everything that is checked is well." in text
    assert "geminga produce my-topic -m hello" in text


def test_events_and_directories_are_for_the_operator() -> None:
    event = Event(
        sequence=7, time_ms=NOW_MS, wall_ms=0, kind="bucket-lost", topic=ORDERS, subscription="billing",
        bucket=12, text="told by the bookie", counts={"messages": 50_000},
    )  # fmt: skip
    found = overview(events=[event])
    for text in (
        "A bucket is gone or damaged",
        "billing",
        "bucket in ledger 12",
        "messages 50,000",
        "told by",
    ):
        assert text in shown(found).text
        assert text not in shown(found, for_operator=False).text
    assert "/data" not in shown(found, for_operator=False).text
    assert "5.0 GiB of 9.0 GiB" in shown(found, for_operator=False).text


def test_an_event_about_times_shows_them_as_times() -> None:
    counts = {"from_ms": NOW_MS, "to_ms": NOW_MS + 60_000, "stops": 1}
    moved = Event(sequence=1, time_ms=NOW_MS, wall_ms=0, kind="clock-moved", counts=counts)
    text = shown(overview(events=[moved])).text
    assert f"from {page_time_text(NOW_MS)}; to {page_time_text(NOW_MS + 60_000)}; stops 1" in text


def test_buckets_and_overdue_messages_of_a_subscription() -> None:
    buckets = BucketStatistics(growing=17, serving=4, lost={"start": 2, "told": 1}, rebuilt=1)
    delayed = DelayedRow(ORDERS, "billing", 1000, 166, buckets, False, (10, 12))
    in_memory = DelayedRow(ORDERS, "audit", 5, 0, None, False, None)
    found = overview(
        buckets=Buckets().plus(buckets),
        reading_again=1,
        delayed=[delayed, in_memory],
        delayed_subscriptions=9,
        wrong=["x"],
        wrong_left_out=2,
    )
    html = drawn(found)
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", one) for one in re.findall("<tr data-key.*?</tr>", html)]
    assert cells == [
        ["834", "166", "17", "4", "3", "1", "to be read again: ledgers 10 to 12"],
        ["5", "0", "-", "-", "-", "-", "in memory only"],
    ]
    text = Document(html).text
    for part in ("17 messages", "4 buckets", "3 buckets", "7 subscriptions with fewer", "3 things are wrong"):
        assert part in text


def test_names_of_clients_are_text() -> None:
    name = f"persistent://public/default/{EVIL}"
    one = row(name)
    found = overview(
        one,
        wrong=[EVIL],
        losses=[EVIL],
        delayed=[DelayedRow(name, EVIL, 1, 0, None, False, None)],
        unserved=[Unserved(1, name, EVIL, 0)],
        namespaces={EVIL: Namespace(1, 1, 1)},
        kept=Kept(1, 1, [(1, name, "request")]),
        events=[Event(sequence=1, time_ms=0, wall_ms=0, kind=EVIL, topic=name, subscription=EVIL, text=EVIL)],
    )
    document = shown(found, one, query=Query(search=EVIL, namespace=EVIL))
    assert document.tags.count("script") == 1
    assert document.text.count(SEEN) >= 10
    assert all('"' not in link and "<" not in link for link in document.links)


def test_a_page_with_as_many_rows_of_as_long_names_as_there_may_be_is_bounded() -> None:
    rows = [row(f"persistent://public/default/{number}{'x' * 250}") for number in range(ROWS_MAX)]
    assert len(drawn(overview(*rows, topics=100_000), *rows)) < 400_000


def test_topics_that_keep_all_messages_are_named_with_the_reason() -> None:
    assert "Kept for compaction" not in shown(overview()).text
    largest = [(2 << 30, ORDERS, "request"), (5, "persistent://a/b/t", "threshold")]
    text = shown(overview(kept=Kept(7, 3 << 30, largest))).text
    for part in (
        "7 topics keep all messages, 3.0 GiB",
        "a request for compaction",
        "2.0 GiB",
        "__compaction",
    ):
        assert part in text


def test_the_page_of_a_topic_quotes_names_for_html_and_for_the_shell() -> None:
    name = "persistent://public/default/a'; rm -rf ~ <b>"
    look = TopicLook(name, NOW_MS, 0, TopicStatistics(name=name), [])
    html = topic_page(look, "pulsar://elsewhere:6650")
    command = re.search(r"geminga topics stats .*", Document(html).text)
    assert command is not None
    assert shlex.split(command[0]) == ["geminga", "topics", "stats", name]
    assert "export GEMINGA_URL=pulsar://elsewhere:6650" in html
    assert "<b>" not in html.replace("<b role", "")
    hidden = topic_page(look._replace(name=f"{name}\n"), "pulsar://h")
    assert "geminga topics stats" not in hidden


def test_the_page_of_a_topic_that_is_partitioned_or_not_loaded() -> None:
    look = TopicLook(ORDERS, NOW_MS, 300, None, [])
    document = Document(topic_page(look, "pulsar://h"))
    partitions = [link for link in document.links if "-partition-" in link]
    assert partitions[0] == "/geminga/topics/persistent/public/default/orders-partition-0"
    assert len(partitions) == 200
    assert "100 partitions left out." in document.text
    assert "Not read yet" in topic_page(look._replace(partitions=0), "pulsar://h")
    unloaded = TopicStatistics(name=look.name, is_loaded=False, storage_size=5 << 20)
    of_records = Document(topic_page(look._replace(partitions=0, figures=unloaded), "pulsar://h"))
    assert "it is not loaded: these are the figures of its records" in of_records.text
    assert "5.0 MiB" in of_records.text


@pytest.mark.parametrize("messages", [2, 1_000_000])
def test_bars_stand_where_messages_are_due(messages: int) -> None:
    hour_ms = 3_600_000
    due = DueTimes(60_000, [(NOW_MS - hour_ms, 5), (NOW_MS + 60 * hour_ms - 60_000, messages)], 1, 0)
    document = Document(due_picture(due, NOW_MS))
    assert document.tags.count("rect") == 2
    assert "text" not in document.tags
    assert "5 messages are due in 0 ms to 1 h" in document.text
    assert f"{messages:,} message" in document.text
    assert "due in 2.5 d to 2.5 d" in document.text


def test_a_few_messages_that_are_due_far_later_squeeze_no_others() -> None:
    near = [(NOW_MS + number * 60_000, 10) for number in range(60)]
    picture = due_picture(DueTimes(60_000, [*near, (NOW_MS + 365 * 86_400_000, 12)], 1, 0), NOW_MS)
    assert picture.count("<rect") == BARS
    assert "; 12 more due later, within 365 d" in picture
    assert "in 1 h<" in picture


def test_many_classes_are_a_bounded_picture() -> None:
    classes = [(NOW_MS + number * 60_000, number + 1) for number in range(1000)]
    assert due_picture(DueTimes(60_000, classes, 5, 2), NOW_MS).count("<rect") == BARS


@pytest.mark.parametrize(
    ("span_ms", "text"),
    [(0, "0 ms"), (1500, "1.5 s"), (90_000, "1.5 min"), (3_600_000, "1 h"), (30 * 86_400_000, "30 d")],
)
def test_spans_as_a_person_reads_them(span_ms: int, text: str) -> None:
    assert span_text(span_ms) == text


def test_times_and_names_that_could_mislead() -> None:
    assert page_time_text(253_402_300_800_000) == "253402300800000 ms"
    assert printable("a\x1b\u202eb\ud800é") == "a\\x1b\\u202eb\\ud800é"
    assert msgspec.json.encode(printable(EVIL))
