"""Numbers of events after a real `kill -9`, as a reader that resumes sees them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from geminga.child_broker import ChildBroker
from geminga.events.event_files import NUMBERS_STEP


def ask(broker: ChildBroker, path: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = Request(f"{broker.web_url}{path}", data=data, headers={"Content-Type": "application/json"})
    with urlopen(request, timeout=60) as response:
        answer = response.read()
    return json.loads(answer) if answer else None


def test_a_reader_resumes_after_a_kill(tmp_path: Path) -> None:
    broker = ChildBroker(tmp_path / "data", arguments=["--chaos"])
    broker.start()
    try:
        for number in range(3):
            ask(
                broker,
                "/geminga/faults",
                {"place": "wire", "kind": "cut", "id": f"r{number}", "count": 1},
            )
        seen = ask(broker, "/geminga/events?since=0")
        assert [event["kind"] for event in seen] == ["started", *["fault-set"] * 3]
        broker.kill()
        broker.start()
        new = ask(broker, f"/geminga/events?since={seen[-1]['sequence']}")
        assert (new[0]["kind"], new[0]["sequence"]) == ("started", NUMBERS_STEP + 1)
        broker.stop()
        broker.start()
        after = ask(broker, f"/geminga/events?since={new[-1]['sequence']}")
        assert [event["kind"] for event in after] == ["stopped", "started"]
        assert [event["sequence"] for event in after] == [new[-1]["sequence"] + 1, new[-1]["sequence"] + 2]
    finally:
        broker.kill()
