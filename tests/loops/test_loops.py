"""The loops in C and those in Python give equal results, and how the broker chooses between them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from geminga.loops import compile as compiling

ROOT = Path(__file__).resolve().parents[2]
OBSTACLE = compiling.obstacle()
compiled = pytest.mark.skipif(OBSTACLE is not None, reason=f"nothing to compare: {OBSTACLE}")
LOADED = "from geminga.loops import native; print(native is not None)"


def run(*words: str, **environment: str) -> str:
    """Python's output, in this checkout."""
    command = [sys.executable, *words]
    variables = {**os.environ, "GEMINGA_PURE": "", "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@compiled
@pytest.mark.parametrize("seed", [1, 2])
def test_thousands_of_frames_are_equal_either_way(seed: int) -> None:
    assert run("-m", "tests.loops.fuzz", "--frames", "4000", "--seed", str(seed)).startswith("equal: ")


@compiled
def test_the_module_is_used_unless_it_is_of_another_source_or_python_is_chosen(tmp_path: Path) -> None:
    assert compiling.compile_loops(tmp_path) is None
    path = f"{ROOT}{os.pathsep}{tmp_path}"
    assert run("-c", LOADED, PYTHONPATH=path) == "True\n"
    assert run("-c", LOADED, PYTHONPATH=path, GEMINGA_PURE="1") == "False\n"
    other = tmp_path / "loops.c"
    other.write_bytes(compiling.SOURCE.read_bytes() + b"\n")
    assert compiling.compile_loops(tmp_path, source=other) is None
    assert run("-c", LOADED, PYTHONPATH=path) == "False\n"


@compiled
def test_equal_bytes_come_from_two_folders(tmp_path: Path) -> None:
    made = []
    for folder in ("one", "another"):
        (tmp_path / folder).mkdir()
        source = tmp_path / folder / "loops.c"
        source.write_bytes(compiling.SOURCE.read_bytes())
        assert compiling.compile_loops(tmp_path / folder, source=source) is None
        made.append((tmp_path / folder / compiling.FILE_NAME).read_bytes())
    assert made[0] == made[1]
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == [compiling.FILE_NAME, "loops.c"]


def test_what_does_not_compile_leaves_no_file(tmp_path: Path) -> None:
    source = tmp_path / "loops.c"
    source.write_text("this is no C\n")
    assert compiling.compile_loops(tmp_path, source=source)
    assert [path.name for path in tmp_path.iterdir()] == ["loops.c"]
