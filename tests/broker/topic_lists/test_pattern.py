"""Which names a client's pattern matches. What the tables expect was asked of a Pulsar 4.0.7 broker."""

from __future__ import annotations

import gc

import pytest

from geminga.broker.flow.client_metadata import ClientMetadata
from geminga.broker.topic_lists.pattern import (
    RECENT_MAX,
    TopicsPattern,
    TopicsPatterns,
    compiled,
    without_domain,
)
from geminga.errors import InvalidPattern

ORDERS = [
    "persistent://public/default/orders-a",
    "persistent://public/default/orders-b",
    "persistent://public/default/orders-p-partition-0",
    "persistent://public/default/orders-p-partition-1",
]
NAMES = [*ORDERS, "persistent://public/default/other"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("persistent://public/default/orders-.*", ORDERS),
        ("public/default/orders-.*", ORDERS),
        ("non-persistent://public/default/orders-.*", ORDERS),
        ("(persistent://public/default/orders-.*)", ORDERS),
        (".*orders-a", ORDERS[:1]),
        ("orders-.*", []),
        ("", []),
        ("persistent://public/default/orders-p", ORDERS[2:]),
        ("persistent://public/default/orders-p-partition-0", []),
    ],
)
def test_a_pattern_matches_the_whole_name_without_domain_and_partition(
    text: str, expected: list[str]
) -> None:
    pattern = compiled(text)
    assert pattern is not None
    assert [name for name in NAMES if pattern.matches(name)] == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(", "missing )"),
        ("persistent://public/default/orders-[", "missing ]"),
        ("a)", "unexpected )"),
        ("*a", "no argument for repetition operator"),
        ("a\\", "trailing"),
        ("http://x/y", "topic domain: http"),
        ("://", "topic domain"),
        ("persistent://", "topic domain"),
    ],
)
def test_a_malformed_pattern_is_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidPattern, match="^.*" + reason.replace(")", r"\)").replace("[", r"\[")):
        compiled(text)


@pytest.mark.parametrize(
    "text",
    ["(?=o)orders", r"(a)\1", "a++", r"\p{Alpha}", "a{2000}", "((a{99}){99}){99}", r"\pL{50}x1", r"\pL{6}"],
)
def test_what_re2_lacks_is_left_to_the_client(text: str, capfd: pytest.CaptureFixture[str]) -> None:
    """And what takes more than the memory limit: the last two fit into 1 MiB, after up to 27 ms."""
    assert compiled(text) is None
    assert capfd.readouterr().err == "", "RE2 would log each pattern to standard error"


def test_a_pattern_that_backtracks_takes_no_more_time_than_the_name_is_long() -> None:
    pattern = compiled("public/default/(a*)*(a*)*(a*)*(a*)*(a*)*(a*)*b")
    assert pattern is not None
    assert not pattern.matches("persistent://public/default/" + "a" * 8000)


def test_the_domain_goes_wherever_a_bracket_stands_before_it() -> None:
    assert without_domain("(persistent://a/b/c)") == "(a/b/c)"
    assert without_domain("a/b/c") == "a/b/c"


def used(patterns: TopicsPatterns, text: str) -> TopicsPattern:
    pattern = patterns.get(text)
    assert pattern is not None
    return pattern


def test_one_text_has_one_pattern_which_is_counted_while_it_is_used() -> None:
    memory = ClientMetadata(1_000_000)
    patterns = TopicsPatterns(memory)
    kept = used(patterns, "a/b/orders-.*")
    assert used(patterns, "a/b/orders-.*") is kept
    assert memory.used_bytes == kept.bytes > 4096
    for number in range(RECENT_MAX):
        used(patterns, f"a/b/other-{number}")
    assert patterns.get(r"\pL{50}x1") is None
    assert used(patterns, "a/b/orders-.*") is kept, "it was not recent any more, but used"
    del kept
    for number in range(3 * RECENT_MAX):
        patterns.get(f"a/b/{number}(?=x)")
    gc.collect()
    assert memory.used_bytes == 0


def test_patterns_beyond_the_memory_are_left_to_their_clients() -> None:
    size_bytes = used(TopicsPatterns(ClientMetadata(10_000)), "a/b/c0").bytes
    memory = ClientMetadata(3 * size_bytes)
    patterns = TopicsPatterns(memory)
    watched = [used(patterns, f"a/b/c{number}") for number in range(2)]
    used(patterns, "a/b/c2")
    watched.append(used(patterns, "a/b/c3"))  # in place of the one that is not used
    assert patterns.get("a/b/c4") is None
    watched.pop()
    gc.collect()
    watched.append(used(patterns, "a/b/c4"))
    assert memory.used_bytes == 3 * size_bytes
