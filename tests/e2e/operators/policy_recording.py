"""Cases about policies and the real broker's answers to them: read, played against a broker, recorded anew.

    python -m tests.e2e.operators.policy_recording http://localhost:8080  # ask a real Pulsar 4.0.7

`policy_recording.json` has the cases: each a list of steps [method, path, body, status, answer]. `N` at the
start of a path is a namespace of its own, `T` a topic in it. The body is sent as it is; an answer is JSON, or
null where Pulsar answered with something else (plain text, a page of HTML).
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from tests.e2e.admin_http import Admin, Answer

FILE = Path(__file__).with_name("policy_recording.json")
SETTLING_S = 0.25
"""How long the real broker takes until it shows a topic's new policy: it goes through a system topic."""


class Step(NamedTuple):
    method: str
    path: str
    body: str | None
    status: int
    answer: Any


class Player:
    """Plays cases against one broker, each in a namespace of its own."""

    def __init__(self, admin: Admin, *, settling_s: float = 0.0) -> None:
        self._admin = admin
        self._settling_s = settling_s
        self._number = 0

    def play(self, steps: list[Step]) -> list[Step]:
        """The same steps with this broker's answers."""
        self._number += 1
        namespace = f"public/policies-{os.getpid()}-{time.time_ns()}-{self._number}"
        roots = {"N": f"/admin/v2/namespaces/{namespace}", "T": f"/admin/v2/persistent/{namespace}/topic"}
        for root in roots.values():
            assert self._admin.put(root).status == 204
        played = []
        for step in steps:
            path = roots[step.path[0]] + step.path[1:]
            raw = None if step.body is None else step.body.encode()
            answer = self._admin.request(step.method, path, raw=raw)
            if step.method != "GET" and step.path[0] == "T":
                time.sleep(self._settling_s)  # noqa: TID251 - only while recording: it tells nobody when
            played.append(step._replace(status=answer.status, answer=_plain(answer, namespace)))
        return played


def _plain(answer: Answer, namespace: str) -> Any:
    if not answer.body:
        return ""
    try:
        return json.loads(answer.text.replace(namespace, "NAMESPACE"))
    except ValueError:
        return None


def cases() -> dict[str, list[Step]]:
    return {name: [Step(*step) for step in steps] for name, steps in json.loads(FILE.read_text()).items()}


def save(recorded: dict[str, list[Step]]) -> None:
    lines = []
    for name, steps in recorded.items():
        rows = ",\n  ".join(json.dumps(step) for step in steps)
        lines.append(f'"{name}": [\n  {rows}\n ]')
    FILE.write_text("{\n " + ",\n ".join(lines) + "\n}\n")


if __name__ == "__main__":
    player = Player(Admin(sys.argv[1]), settling_s=SETTLING_S)
    save({name: player.play(steps) for name, steps in cases().items()})
