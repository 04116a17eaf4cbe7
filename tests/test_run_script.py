"""`run.py`, the first thing that a user starts."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def test_an_installation_tells_what_takes_long() -> None:
    spec = importlib.util.spec_from_file_location("run_script", ROOT / "run.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    lines = [
        "Downloading pyspark-4.3.0.tar.gz (456.1 MB)",
        "Using cached pyarrow-26.0.1-cp311-cp311-manylinux_2_28_x86_64.whl (48.7 MB)",
        "Building wheels for collected packages: pyspark",
        "Installing collected packages: pytz, trio",
    ]
    others = ["Collecting trio==0.35.0", "Downloading trio-0.35.0-py3-none-any.whl (510 kB)", ""]
    assert [line for line in [*lines, *others] if script.is_worth_telling(line)] == lines
    assert set(script.SIZES) == set(script.LOCKS)


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_an_environment_that_is_a_link_is_used_and_not_written_to(tmp_path: Path) -> None:
    checkout, owner = tmp_path / "checkout", tmp_path / "owner"
    (checkout / "locks").mkdir(parents=True)
    (owner / "bin").mkdir(parents=True)
    for name in ("run.py", "pyproject.toml", "locks/run.txt", "locks/test.txt"):
        shutil.copy(ROOT / name, checkout / name)
    python = owner / "bin" / "python"
    python.write_text('#!/bin/sh\necho "$PYTHONPATH|$GEMINGA_COMMAND|$*"\n')
    python.chmod(0o755)
    (checkout / ".venv").symlink_to(owner)
    before = sorted(path.relative_to(owner) for path in owner.rglob("*"))

    done = subprocess.run(
        [sys.executable, checkout / "run.py", "topics", "list"], capture_output=True, text=True, check=True
    )

    assert done.stdout == f"{checkout}|python3 {checkout}/run.py|-P -m geminga topics list\n"
    assert sorted(path.relative_to(owner) for path in owner.rglob("*")) == before
