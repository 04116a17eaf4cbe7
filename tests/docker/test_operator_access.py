"""Beyond loopback what breaks things, or names files of the broker's machine, needs the operator's token."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.broker_process import ROOT
from tests.e2e.child_process import start_child

EVERY = "all of the operator's, elsewhere"
TOKEN = "s3cret-s3cret-s3cret"
UNSHARE = ["unshare", "-rn"]


def why_not() -> str:
    for command in ("unshare", "ip"):
        if shutil.which(command) is None:
            return f"there is no command {command} here"
    tried = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True, check=False)
    return f"no namespaces of one's own here: {tried.stderr.strip()}" if tried.returncode else ""


def answers_of(directory: Path, *token: str) -> dict[str, Any]:
    if reason := why_not():
        print(f"skipped: {reason}")
        pytest.skip(reason)
    program = [sys.executable, "-m", "tests.docker.operator_token", str(directory), *token]
    child = start_child(
        [*UNSHARE, *program], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with child:
        out, errors = child.communicate(timeout=60)
    assert child.returncode == 0, errors
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def statuses(answers: dict[str, Any], *cases: str) -> dict[str, int]:
    return {case: answers[case][0] for case in cases}


def test_without_a_token_only_the_own_machine_may(tmp_path: Path) -> None:
    answers = answers_of(tmp_path)
    # 404: it was let in, and there is no such topic.
    assert statuses(answers, "loopback", "loopback, wrong", "elsewhere", "elsewhere, wrong") == {
        "loopback": 404,
        "loopback, wrong": 404,
        "elsewhere": 403,
        "elsewhere, wrong": 403,
    }
    assert "start the broker with GEMINGA_OPERATOR_TOKEN set" in answers["elsewhere"][1]
    assert answers["elsewhere, backup"][0] == 403
    assert answers["snapshots, elsewhere"] == [403] * 3
    assert answers[EVERY] == []
    # 400: it was let in, and the body is no rule.
    assert statuses(answers, "faults, loopback", "faults, elsewhere", "faults, right") == {
        "faults, loopback": 400,
        "faults, elsewhere": 403,
        "faults, right": 403,
    }
    assert answers["command"][0] == 1
    assert "start the broker with GEMINGA_OPERATOR_TOKEN set" in answers["command"][1]


def test_the_token_opens_beyond_loopback_and_is_seen_nowhere(tmp_path: Path) -> None:
    answers = answers_of(tmp_path, TOKEN)
    assert statuses(answers, *[case for case in answers if case not in {"settings", EVERY}]) == {
        "loopback": 404,
        "loopback, wrong": 404,
        "elsewhere": 401,
        "elsewhere, wrong": 401,
        "elsewhere, empty": 401,
        "elsewhere, right": 404,
        "faults, loopback": 400,
        "faults, elsewhere": 401,
        "faults, right": 400,
        "snapshots, elsewhere": 401,
        "snapshots, right": 400,
        "elsewhere, backup": 200,
        "page, right": 403,
        "page on loopback": 403,
        "command": 1,
        "command, variable": 1,
        "command, file": 1,
    }
    assert answers["elsewhere"][2] == "Bearer"
    assert answers["snapshots, elsewhere"] == [401] * 3
    assert answers["snapshots, right"] == [400] * 2, "no directory was named"
    assert "the bearer token is missing" in answers["command"][1]
    for case in ("command, variable", "command, file"):
        assert answers[case][1].endswith("t does not exist"), "the command was let in"
    assert TOKEN not in json.dumps(answers)
    assert TOKEN not in (tmp_path / "data.log").read_text()
    assert "lose-bucket" in (tmp_path / "data.log").read_text(), "requests are in this log"
