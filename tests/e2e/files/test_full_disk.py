"""A broker whose disk is full: a short run of `full_disk`."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.e2e.broker_process import ROOT

pytestmark = pytest.mark.skipif("GEMINGA_TEST_URL" in os.environ, reason="mounts the broker's disk")


def test_a_broker_on_a_full_disk_refuses_stops_and_does_not_start() -> None:
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user cannot mount a file system in a namespace of its own (unshare -rm)")
    command = [sys.executable, "-m", "tests.e2e.files.full_disk", "--shortest"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
