"""Seeds as files: what is read, and what is said about those that cannot be."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from geminga.cli.seeding.seed_file import Message, SeedError, parse_seed

TOML = b"""
[[tenants]]
name = "shop"

[[namespaces]]
name = "shop/orders"
policies = { messageTTL = 3600 }

[[topics]]
name = "shop/orders/placed"
partitions = 3
subscriptions = ["billing"]
policies = { maxConsumers = 5 }

[[topics.messages]]
json = { order = 1 }
key = "ann"
properties = { source = "web" }

[[topics.messages]]
base64 = "AAE="
delay = "1.5h"
event_time_ms = 7
repeat = 3
"""
LINES = b"""
{"tenant": "shop"}
{"namespace": "shop/orders", "policies": {"messageTTL": 3600}}

{"topic": "shop/orders/placed", "partitions": 3, "subscriptions": ["billing"], "policies":{"maxConsumers":5}}
{"to": "shop/orders/placed", "json": {"order": 1}, "key": "ann", "properties": {"source": "web"}}
{"to": "shop/orders/placed", "base64": "AAE=", "delay": "1.5h", "event_time_ms": 7, "repeat": 3}
"""


@pytest.mark.parametrize(("name", "content"), [("s.toml", TOML), ("s.jsonl", LINES)])
def test_both_kinds_of_files_say_the_same(name: str, content: bytes) -> None:
    seed = parse_seed(name, content)
    assert seed.tenants == ("shop",)
    assert [(str(namespace), policies) for namespace, policies in seed.namespaces] == [
        ("shop/orders", {"messageTTL": 3600})
    ]
    [topic] = seed.topics
    assert str(topic.name) == "persistent://shop/orders/placed"
    assert (topic.partitions, topic.subscriptions, topic.policies) == (3, ("billing",), {"maxConsumers": 5})
    assert topic.messages == (
        Message(b'{"order":1}', "ann", {"source": "web"}, None, None, 1),
        Message(b"\x00\x01", None, {}, 5_400_000, 7, 3),
    )
    assert seed.messages == 4


def test_the_examples_of_the_page_are_seeds() -> None:
    page = (Path(__file__).parents[3] / "docs" / "snapshots.md").read_text()
    blocks = [
        textwrap.dedent(block) for block in re.findall(r"(?:^    .*\n|^\n(?=    ))+", page, re.MULTILINE)
    ]
    [toml] = [block for block in blocks if "# shop.toml" in block]
    [lines] = [block for block in blocks if '{"namespace"' in block]
    names = ["persistent://shop/orders/placed", "persistent://shop/orders/reminders"]
    assert [str(topic.name) for topic in parse_seed("shop.toml", toml.encode()).topics] == names
    assert [str(topic.name) for topic in parse_seed("shop.jsonl", lines.encode()).topics] == names


def test_a_topic_needs_no_tables_above_it() -> None:
    seed = parse_seed("s.jsonl", b'{"to": "a/b/t", "text": ""}\n{"to": "u", "text": "x"}')
    assert seed.tenants == ("a", "public")
    assert [str(namespace) for namespace, _ in seed.namespaces] == ["a/b", "public/default"]
    assert [topic.messages[0].payload for topic in seed.topics] == [b"", b"x"]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("s.yaml", "", "expected a name that ends with .toml or .jsonl"),
        ("s.toml", "[[topics", "s.toml: "),
        ("s.toml", "[[topics]]\nname = 7", "at `$.topics[0].name`"),
        ("s.toml", "[[topics]]\nname = 't'\ndelya = 1", "unknown field `delya`"),
        ("s.toml", "[[topics]]\nname = 'a/b'", "topics[0]: "),
        ("s.toml", "[[topics]]\nname = 't'\npartitions = -1", "partitions: expected 0"),
        ("s.toml", "[[tenants]]\nname = 'a b'", "invalid tenant name"),
        ("s.toml", "[[namespaces]]\nname = 'a'", "namespaces[0]: "),
        ("s.toml", "[[topics]]\nname = 't'\nmessages = [{}]", "messages[0]: expected one of text, json and"),
        ("s.toml", "[[topics]]\nname = 't'\nmessages = [{text = '', json = 1}]", "expected one of text"),
        ("s.toml", "[[topics]]\nname = 't'\nmessages = [{text = '', delay = '3x'}]", "expected a duration"),
        ("s.toml", "[[topics]]\nname = 't'\nmessages = [{text = '', delay = '-3s'}]", "expected a duration"),
        ("s.toml", "[[topics]]\nname = 't'\nmessages = [{text = '', repeat = 0}]", "repeat: expected 1"),
        ("s.toml", "[[topics]]\nname = 't'\nmessages = [{base64 = '?'}]", "base64: "),
        ("s.jsonl", "{}", "line 1: expected a field"),
        ("s.jsonl", '{"tenant": "a"}\n{', "line 2: "),
        ("s.jsonl", "[]", "line 1: Expected `object`"),
        ("s.jsonl", '{"to": "t", "text": ""}\n{"topic": "t"}', "line 2: t was named before"),
        ("s.jsonl", '{"to": ["t"], "text": ""}', "line 1: "),
        ("s.jsonl", '{"to": "t", "text": "' + "[" * 100_000, "line 1: "),
    ],
)
def test_what_is_wrong_is_said_with_its_place(name: str, content: str, reason: str) -> None:
    with pytest.raises(SeedError) as error:
        parse_seed(name, content.encode())
    assert str(error.value).startswith(f"{name}: ")
    assert reason in str(error.value)
