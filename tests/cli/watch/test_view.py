"""What `geminga top` shows, and what its keys do, without a terminal."""

from __future__ import annotations

import json
from typing import Any

import pytest

from geminga.cli.show import text
from geminga.cli.show.table import COLOURS, PLAIN
from geminga.cli.watch.terminal import keys_of
from geminga.cli.watch.view import View, Wish


def row(name: str, **figures: Any) -> dict[str, Any]:
    empty = dict.fromkeys(
        ("rate_in", "rate_out", "backlog", "delayed", "unacked", "subscriptions", "consumers", "producers"), 0
    )
    topic = f"persistent://public/default/{name}"
    return {"topic": topic, "shown": name, "partitions": None, "storage_bytes": 0, **empty, **figures}


ROWS = [row("a", rate_in=1.0, backlog=5), row("b", rate_in=9.0), row("c\x1b[2J", backlog=70)]
STATS = json.loads(
    """{"msgRateIn": 1.0, "msgRateOut": 2.0, "msgInCounter": 3, "msgOutCounter": 4, "storageSize": 2048,
    "publishers": [{"producerName": "p-1", "msgRateIn": 1.0, "averageMsgSize": 10.0}],
    "subscriptions": {"s": {"type": "Shared", "msgBacklog": 7, "unackedMessages": 2, "msgDelayed": 1,
        "consumers": [{"consumerName": "c-1", "address": "/1.2.3.4:5", "unackedMessages": 2,
            "availablePermits": 998, "msgRateOut": 2.0}]}}}"""
)


@pytest.fixture
def view() -> View:
    made = View("http://h:1")
    made.saw_topics([dict(one) for one in ROWS], {"connections": 3.0})
    return made


def names(view: View) -> list[str]:
    lines = view.lines(120, 12, PLAIN)
    return [line.split()[0] for line in lines[4:7] if line.strip()]


def test_keys_sort_reverse_and_find(view: View) -> None:
    assert names(view) == ["b", "a", "c\\x1b[2J"], "by rate, then by name"
    view.press(">")
    view.press(">")
    assert "sorted by BACKLOG" in "\n".join(view.lines(120, 12, PLAIN))
    assert names(view)[0] == "c\\x1b[2J"
    view.press("r")
    assert names(view) == ["b", "a", "c\\x1b[2J"]
    for key in "/b":
        view.press(key)
    assert view.lines(120, 12, PLAIN)[-1] == "find: b_"
    assert names(view) == ["b"]
    assert view.press("q") is Wish.NOTHING, "a letter, as long as it is typed"
    view.press("esc")
    assert len(names(view)) == 3


def test_nothing_is_counted_before_the_first_look() -> None:
    view = View("http://h:1")
    assert "topic" not in "\n".join(view.lines(120, 12, PLAIN)).replace("geminga top", "")
    view.saw_topics([], {})
    assert "0 topics" in view.lines(120, 12, PLAIN)[1]


def test_enter_looks_inside_and_escape_goes_back(view: View) -> None:
    view.press("down")
    assert view.press("enter") is Wish.LOOK
    assert view.topic == "persistent://public/default/a"
    view.saw_topic("persistent://public/default/b", STATS, 1.0)
    assert "looking ..." in view.lines(80, 12, PLAIN), "the answer for another topic"
    view.saw_topic(view.topic, STATS, 1.0)
    shown = "\n".join(view.lines(120, 24, PLAIN))
    for expected in ("Shared", "c-1", "/1.2.3.4:5", "998", "p-1", "messages in 3", "2.0 KiB"):
        assert expected in shown
    assert view.press("esc") is Wish.LOOK
    assert view.topic is None
    assert view.press("q") is Wish.QUIT


def test_the_choice_stays_with_its_topic_when_the_order_changes(view: View) -> None:
    view.press("down")
    view.press("down")
    view.saw_topics([row("a", rate_in=99.0), row("b"), row("c\x1b[2J", rate_in=100.0)], {})
    view.press("enter")
    assert view.topic == "persistent://public/default/c\x1b[2J"


@pytest.mark.parametrize("size", [(80, 24), (200, 50), (20, 5), (1, 1), (40, 3)])
@pytest.mark.parametrize("inside", [False, True])
def test_a_screen_is_never_larger_than_the_terminal(view: View, size: tuple[int, int], inside: bool) -> None:
    width, height = size
    view.saw_topics([row(f"{'n' * 50}-{number}", rate_in=1e9) for number in range(100)], {})
    if inside:
        view.press("enter")
        view.saw_topic(view.topic or "", {**STATS, "publishers": STATS["publishers"] * 100}, 1.0)
    for key in ("end", "pgup", "down", "up", "pgdn", "home"):
        view.press(key)
        lines = view.lines(width, height, PLAIN)
        assert len(lines) == height
        assert all(text.cells(line) <= max(width, 12) for line in lines)
        assert all(line.isprintable() for line in lines)


def test_all_of_a_long_list_can_be_reached(view: View) -> None:
    view.saw_topics([row(f"t{number:03}") for number in range(100)], {})
    seen = set()
    for _ in range(100):
        seen |= {line.split()[0] for line in view.lines(80, 12, PLAIN)[4:-1] if line.startswith("t")}
        view.press("down")
    assert len(seen) == 100
    [selected] = [line for line in view.lines(80, 12, COLOURS) if line.startswith("\x1b[7m")]
    assert "t099" in selected


def test_a_failed_look_is_told_and_what_was_seen_stays(view: View) -> None:
    view.failed("http://h:1: no answer\x1b[2J")
    shown = view.lines(80, 12, PLAIN)
    assert shown[1] == "http://h:1: no answer\\x1b[2J"
    assert names(view) == ["b", "a", "c\\x1b[2J"]


def test_a_pause_holds_the_screen(view: View) -> None:
    view.press("p")
    assert view.is_paused
    assert "PAUSED" in view.lines(80, 12, PLAIN)[0]


def test_keys_have_names() -> None:
    typed = "\x1b[A\x1bOBq\x1b[5~\r\x7f\x1b[99;5u\x1b"
    assert keys_of(typed) == ["up", "down", "q", "pgup", "enter", "backspace", "", "esc"]
