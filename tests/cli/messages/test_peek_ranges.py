"""What a subscription has acknowledged, from answers that list some of its ranges each."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from pyroaring import BitMap

from geminga.cli.messages import peek
from geminga.pipeline.buckets import served
from geminga.pipeline.errors import Access

RANGES = [(3, entry, entry + 1) for entry in range(1, 60, 4)] + [(4, 0, 2)]


def answer(target: str, ranges_max: int = 5) -> dict[str, Any]:
    """As Geminga gives it to a request for `internalStats`, of two subscriptions."""
    query = {key: values[0] for key, values in parse_qs(urlsplit(target).query).items()}
    ledger, entry = query.get("gemingaRangesAfter", "-1:-1").split(":")
    rest = [one for one in RANGES if (one[0], one[2]) > (int(ledger), int(entry))]
    found = {}
    for name in ("first", "s"):
        listed = rest[:ranges_max] if query.get("gemingaRangesOf", "first") == name else []
        left_out = {"gemingaRangesLeftOut": len(rest) - len(listed)} if len(listed) < len(rest) else {}
        text = ",".join(f"({id_}:{first - 1}..{id_}:{last}]" for id_, first, last in listed)
        found[name] = {
            "markDeletePosition": "3:-1",
            "individuallyDeletedMessages": f"[{text}]",
            **left_out,
        }
    return {"cursors": found}


ACKNOWLEDGED = {(id_, entry) for id_, first, last in RANGES for entry in range(first, last + 1)}


def test_peek_asks_until_it_has_all_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    class Admin:
        def __init__(self, url: str) -> None: ...

        def call(self, method: str, target: str) -> dict[str, Any]:
            return answer(target)

    monkeypatch.setattr(peek, "Admin", Admin)
    flags = argparse.Namespace(url="http://localhost:8080", subscription="s")
    found = peek._acknowledged(flags, "persistent://public/default/t")
    assert {(id_, entry) for id_ in (3, 4) for entry in range(70) if (id_, entry) in found} == ACKNOWLEDGED


def test_a_rebuild_asks_until_it_has_all_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    def get_json(access: Access, url: str, target: str) -> Mapping[str, Any]:
        return (
            answer(target)
            if "internalStats" in target
            else {"keepsBuckets": True, "isBeingRead": False, "isShared": True}
        )

    monkeypatch.setattr(served, "get_json", get_json)
    topic = "persistent://public/default/t"
    for found in served.ServedIndex(
        Access("pulsar://localhost:6650"), "http://localhost:8080", topic, "s"
    ).acknowledged():
        bits = {(id_, entry) for id_, data in found.apart.items() for entry in BitMap.deserialize(data)}
        assert bits == ACKNOWLEDGED
