"""`run.py`, the first thing that a user starts."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_an_environment_that_is_a_link_is_used_and_not_written_to(tmp_path: Path) -> None:
    checkout, owner = tmp_path / "checkout", tmp_path / "owner"
    (checkout / "locks").mkdir(parents=True)
    (owner / "bin").mkdir(parents=True)
    for name in ("run.py", "pyproject.toml", "locks/run.txt", "locks/test.txt"):
        shutil.copy(ROOT / name, checkout / name)
    python = owner / "bin" / "python"
    python.write_text('#!/bin/sh\necho "$PYTHONPATH|$*"\n')
    python.chmod(0o755)
    (checkout / ".venv").symlink_to(owner)
    before = sorted(path.relative_to(owner) for path in owner.rglob("*"))

    done = subprocess.run(
        [sys.executable, checkout / "run.py", "topics", "list"], capture_output=True, text=True, check=True
    )

    assert done.stdout == f"{checkout}|-P -m geminga topics list\n"
    assert sorted(path.relative_to(owner) for path in owner.rglob("*")) == before
