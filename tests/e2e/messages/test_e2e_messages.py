"""Looks at stored messages by the admin API, asked as the real broker was: the same answers.

`DIFFERENCES` lists what differs on purpose, with the reason; a row that explains nothing any more fails too.

    python -m tests.e2e.messages.test_e2e_messages pulsar://... http://...

prints the differences of a running broker.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.e2e.broker_process import Endpoints
from tests.e2e.messages.recorder import CASES, NO_ANSWER, Asked, play, recorded

NUMBERS_OF_A_RUN = ("ledgerId", "cursorsLedgerId", "timestamp", "version", "creationDate", "modificationDate")
DIFFERENCES = {
    ("partitioned", "GET", "properties"): "an empty object rather than no body, as of other topics",
    ("partitioned", "GET", "subscriptions"): "compaction makes no subscription here",
    ("permissions", "GET", "permissions"): "an action that does not exist is left out, not kept as null",
    ("backlog size", "PUT", "backlogSize"): "entries are a stamp longer, and behind the end there is nothing",
    ("one partition", "PUT", "backlogSize"): "entries are a stamp longer",
    ("unloaded", "PUT", "backlogSize"): "entries are a stamp longer",
}


class Difference(NamedTuple):
    case: str
    method: str
    path: str
    body: Any
    what: str


def differences(service_url: str, web_url: str) -> Iterator[Difference]:
    theirs, ours = recorded(), play(service_url, web_url, list(CASES))
    for case in CASES:
        for there, here in zip(theirs[case], ours[case], strict=True):
            if what := _difference(there, here):
                yield Difference(case, there.method, there.path, there.body, what)


def _difference(there: Asked, here: Asked) -> str | None:
    if there.status == NO_ANSWER or there.status >= 500:  # what the real broker stumbles over
        return None if 400 <= here.status < 500 else f"status {there.status} there, {here.status} here"
    if there.status != here.status:
        return f"status {there.status} there, {here.status} here: {here.answer}"
    if there.answer is None:  # HTML
        return None
    if "x-pulsar-message-id" in there.headers:
        if _plain_headers(there) != _plain_headers(here):
            return f"headers {_plain_headers(there)} there, {_plain_headers(here)} here"
        return None if there.answer == here.answer else f"{there.answer} there, {here.answer} here"
    if _plain(there.answer) != _plain(here.answer):
        return f"{there.answer} there, {here.answer} here"
    return None


def _plain_headers(asked: Asked) -> dict[str, Any]:
    """The order of a message's properties is a hash table's there."""
    return {**asked.headers, "x-pulsar-property": json.loads(asked.headers["x-pulsar-property"])}


def _plain(answer: Any) -> Any:
    if isinstance(answer, dict):
        kept = {key: _plain(value) for key, value in answer.items() if key not in NUMBERS_OF_A_RUN}
        return {key: value for key, value in kept.items() if key != "__compaction"}
    if isinstance(answer, list):
        return sorted(map(_plain, answer), key=repr)
    return answer


@pytest.mark.geminga_only
def test_stored_messages_are_shown_as_by_the_real_broker(broker: Endpoints) -> None:
    found = list(differences(broker.service_url, broker.web_url))
    assert [one for one in found if (one.case, one.method, one.path) not in DIFFERENCES] == []
    assert DIFFERENCES.keys() - {(one.case, one.method, one.path) for one in found} == set()


def test_the_recording_is_of_these_cases() -> None:
    asked = {case: [tuple(json.loads(json.dumps(step))) for step in steps] for case, steps in CASES.items()}
    assert {case: [(a.method, a.path, a.body) for a in steps] for case, steps in recorded().items()} == asked


def main() -> None:
    for one in differences(*sys.argv[1:3]):
        mark = "explained" if (one.case, one.method, one.path) in DIFFERENCES else "DIFFERS"
        print(mark, *one, sep="\t")


if __name__ == "__main__":
    main()
