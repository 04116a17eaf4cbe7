"""Everything that `schema_recording.json` has of a real broker's answers about schemas, asked here."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from tests.e2e.broker_process import Endpoints
from tests.e2e.operators.schema_recording import CASES, RECORDING, play_case

RECORDED = RECORDING.read().cases
INCOMPATIBLE = 18
DIFFERENT: dict[tuple[str, str], Any] = {
    # A number that is none, a type that is none, no definition: Pulsar answers 500 with a stack trace.
    ("versions", '["GET", "{S}/schema/x"]'): 400,
    # Pulsar closes the connection, or never answers.
    ("versions", '["look", "00"]'): INCOMPATIBLE,
    ("bad schemas", '["produce", "kv bad"]'): INCOMPATIBLE,
}


def is_like(told: Any, recorded: Any) -> bool:
    """Java names its exceptions and repeats itself; whatever else it says we say too."""
    if isinstance(recorded, list) and recorded[:1] == ["error"]:
        return isinstance(told, list) and told[:2] == recorded[:2] and _says(told[2], recorded[2])
    if isinstance(recorded, list) and len(recorded) == 2 and isinstance(recorded[1], dict):
        status, shown = recorded
        if "reason" in shown:
            return bool(
                told[0] == status and isinstance(told[1], dict) and _says(told[1]["reason"], shown["reason"])
            )
    return bool(told == recorded)


def _says(text: str, recorded: str) -> bool:
    bare = recorded.partition(" caused by ")[0]
    parts = (recorded, bare, bare.partition(": ")[2])
    own = (text, text.partition(" caused by ")[0])
    return any("".join(one.split()) == "".join(part.split()) for one in own for part in parts)


def of_parsers(recorded: Any) -> bool:
    """An error that Avro's, Jackson's or protobuf's own words describe."""
    return any(word in json.dumps(recorded) for word in ("ParseException", "deserialize ProtobufNative"))


def expected(case: str, step: list[Any], recorded: Any) -> Any:
    """None: as recorded."""
    told = DIFFERENT.get((case, json.dumps(step)))
    if told is None and step[0] == "POST" and recorded[0] == 500:
        # `compatibility` says no instead of breaking, `schema` says what is wrong with the request.
        told = 202 if "{S}/compatibility" in step[1] else 400
    if told is None and of_parsers(recorded):
        told = INCOMPATIBLE
    return told


@pytest.mark.geminga_only
@pytest.mark.parametrize("name", CASES)
def test_schemas_are_as_recorded(broker: Endpoints, name: str) -> None:
    answers = play_case(name, broker.service_url, broker.web_url, f"schemas-{os.getpid()}")
    wrong = []
    for step, told, recorded in zip(CASES[name], answers, RECORDED[name], strict=True):
        other = expected(name, step, recorded)
        if other is None:
            fits = is_like(told, recorded)
        elif other == 202:
            fits = told[0] == 202 and told[1]["compatibility"] is False
        else:
            fits = isinstance(told, list) and (told[0] == other or told[:2] == ["error", other])
        if not fits:
            wrong.append(f"{step}\n  told:     {told}\n  recorded: {recorded}")
    assert not wrong, "\n".join(wrong)
