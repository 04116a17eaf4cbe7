"""Runs a command that permissions bind, also where the tests run as root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SECONDS_MAX = 60


def run_bound(*arguments: object) -> subprocess.CompletedProcess[str]:
    """`geminga` with these arguments. Skips the test, with the reason, where permissions bind nobody."""
    return _run(_prefix(), arguments)


def run_on_read_only(path: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """The same with `path` mounted read-only."""
    if shutil.which("unshare") is None:
        pytest.skip("'unshare' is not there, so nothing can be mounted read-only")
    enter = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
    mount = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0"'
    probe = subprocess.run([*enter, "sh", "-c", mount, str(path)], capture_output=True, text=True)
    if probe.returncode:
        pytest.skip(f"nothing can be mounted read-only here: {probe.stderr.strip()}")
    return _run([*enter, "sh", "-c", f'{mount} && exec "$@"', str(path)], arguments)


def _run(prefix: list[str], arguments: tuple[object, ...]) -> subprocess.CompletedProcess[str]:
    command = [*prefix, sys.executable, "-P", "-m", "geminga", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX)


def _prefix() -> list[str]:
    if sys.platform == "win32":
        pytest.skip("Windows has no modes")
    if os.geteuid():
        return []
    # Root without these two capabilities is the owner of its files, and bound by their modes.
    prefix = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    if shutil.which("setpriv") is None or subprocess.run([*prefix, "true"], capture_output=True).returncode:
        pytest.skip("the tests run as root, and 'setpriv' cannot give up its rights here")
    return prefix
