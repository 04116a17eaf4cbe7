"""Tables, texts and numbers as commands show them."""

from __future__ import annotations

import pytest

from geminga.cli.show import text
from geminga.cli.show.numbers import age_text, bytes_text, count_text, rate_text
from geminga.cli.show.table import COLOURS, Column, pairs, table

TOPIC = Column("TOPIC", "topic", importance=9)
BACKLOG = Column("BACKLOG", "backlog", count_text, importance=5, alarming=lambda value: value > 100)
SIZE = Column("SIZE", "size", bytes_text, importance=1)


def test_texts_are_left_and_numbers_right() -> None:
    rows = [{"topic": "a", "backlog": 7, "size": 2048}, {"topic": "orders", "backlog": 12345, "size": None}]
    assert table((TOPIC, BACKLOG, SIZE), rows) == [
        "TOPIC   BACKLOG     SIZE",
        "a             7  2.0 KiB",
        "orders    12345        -",
    ]


@pytest.mark.parametrize("width", range(8, 60))
def test_a_table_never_is_wider_than_the_terminal(width: int) -> None:
    rows = [{"topic": "a-very-long-name-of-a-topic-世界-and-more", "backlog": 10**12, "size": 5}]
    lines = table((TOPIC, BACKLOG, SIZE), rows, width=width)
    assert all(text.cells(line) <= max(width, 12) for line in lines)
    assert ("SIZE" in lines[0]) is (width >= 28 + 2 + 8 + 2 + 4), "a name that can be read is worth more"
    assert ("BACKLOG" in lines[0]) is (width >= 12 + 2 + 8)


def test_names_are_cut_in_the_middle_as_their_ends_tell_them_apart() -> None:
    assert text.cut("orders-europe-partition-17", 13) == "orders…ion-17"
    assert text.cut("世界世界世界", 5) == "世…界"
    assert text.cut("short", 13) == "short"
    assert text.cut_end("a long payload", 7) == "a long…"


@pytest.mark.parametrize(
    "hostile",
    ["\x1b[2J", "\x9b31m", "a\rb", "x\u202ey", "\x00", "\x7f", "a\nb", "\u2028", "\x1b]0;title\x07"],
)
def test_no_control_character_reaches_the_terminal(hostile: str) -> None:
    [_, line] = table((TOPIC,), [{"topic": hostile}], width=80)
    [paired] = pairs([("key", hostile)])
    for shown in (line, paired, text.escaped_json(f'"{hostile}"').replace("\n", "").replace("\u2028", "")):
        assert shown.isprintable()
    assert "\\x" in line or "\\u" in line


def test_a_value_that_wants_attention_is_red_and_the_rest_is_aligned_as_before() -> None:
    lines = table(
        (TOPIC, BACKLOG), [{"topic": "a", "backlog": 101}, {"topic": "b", "backlog": 9}], style=COLOURS
    )
    assert lines[1:] == ["a      \x1b[31m    101\x1b[0m", "b            9"]


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (rate_text(0.0), "0"),
        (rate_text(0.25), "0.25"),
        (rate_text(9.999), "10.0"),
        (rate_text(1234.5), "1234"),
        (rate_text(None), "-"),
        (count_text(9_999_999), "9999999"),
        (count_text(12_345_678), "12.3 M"),
        (count_text(-1), "-1"),
        (bytes_text(0), "0 B"),
        (bytes_text(1536), "1.5 KiB"),
        (bytes_text(2**70), "1048576.0 PiB"),
        (age_text(0), "0s"),
        (age_text(185_000), "3m 5s"),
        (age_text(7 * 3_600_000 + 720_000), "7h 12m"),
        (age_text(12 * 86_400_000 + 3 * 3_600_000), "12d 3h"),
    ],
)
def test_numbers_as_a_person_reads_them(shown: str, expected: str) -> None:
    assert shown == expected
