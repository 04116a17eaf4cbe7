"""Scrapes and admin clients reach a broker that is bound to all addresses by any name; web pages do not."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.broker_process import ROOT
from tests.e2e.child_process import start_child
from tests.e2e.operators.second_namespace import ADVERTISED, SERVICE

pytestmark = pytest.mark.geminga_only
ANSWERED = {"scrape": 200, "list": 200, "create": 204, "delete": 204}
UNSHARE = ["unshare", "-rnm"]


def why_not() -> str:
    for command in ("unshare", "nsenter", "ip", "mount"):
        if shutil.which(command) is None:
            return f"there is no command {command} here"
    tried = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True, check=False)
    return f"no namespaces of one's own here: {tried.stderr.strip()}" if tried.returncode else ""


def test_a_scrape_and_an_admin_client_by_service_name_from_another_namespace(tmp_path: Path) -> None:
    if reason := why_not():
        print(f"skipped: {reason}")
        pytest.skip(reason)
    program = [sys.executable, "-m", "tests.e2e.operators.second_namespace", str(tmp_path)]
    child = start_child(
        [*UNSHARE, *program], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with child:
        out, errors = child.communicate(timeout=60)
    assert child.returncode == 0, errors
    answers = json.loads(out.splitlines()[-1])
    assert answers == {
        ADVERTISED: {**ANSWERED, "page": 403, "rebound": 200, "message": ADVERTISED},
        SERVICE: {**ANSWERED, "page": 403, "rebound": 403, "message": SERVICE},
    }
