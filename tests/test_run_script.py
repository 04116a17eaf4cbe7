"""`run.py`, the first thing that a user starts."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("run_script", ROOT / "run.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def test_an_installation_tells_what_takes_long(script: ModuleType) -> None:
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


@pytest.mark.parametrize(
    ("options", "prefix", "optimised"),
    [
        ("'--enable-optimizations' '--with-lto'", "/usr/local", True),  # Docker's images, Homebrew, uv
        ("'--enable-shared' '--prefix=/root/.pyenv/versions/3.11.7'", "/root/.pyenv/versions/3.11.7", False),
        ("'--enable-shared' '--prefix=/usr'", "/usr", True),  # Debian
        (None, r"C:\Python314", True),
    ],
)
def test_an_interpreter_without_pgo_is_recognised(
    script: ModuleType, options: str | None, prefix: str, optimised: bool
) -> None:
    built = f"import sys, sysconfig; sys.base_prefix = {prefix!r}"
    built += f"; sysconfig.get_config_var = {{'CONFIG_ARGS': {options!r}}}.get"
    done = subprocess.run([sys.executable, "-c", f"{built}\n{script.OPTIMISED}"], check=False)
    assert done.returncode == (0 if optimised else 1)


@pytest.mark.skipif(sys.platform == "win32", reason="shell scripts stand for interpreters")
def test_a_slow_interpreter_is_told_once_with_a_faster_one_on_the_path(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    newest, *_, oldest = (tmp_path / f"python3.{minor}" for minor in script.PACKAGED)
    for python, code in ((newest, 1), (oldest, 0)):
        python.write_text(f"#!/bin/sh\nexit {code}\n")
        python.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(newest))
    script.tell_of_faster_python()
    [line] = capsys.readouterr().err.splitlines()
    assert "built without profile-guided optimisation" in line
    assert f" {oldest} is optimised; to use it: rm -r {ROOT}/.venv; {oldest} " in line

    monkeypatch.setattr(sys, "executable", str(oldest))
    script.tell_of_faster_python()
    assert capsys.readouterr() == ("", "")


def test_packaged_versions_are_those_of_the_metadata(script: ModuleType) -> None:
    named = re.findall(r"Python :: 3\.(\d+)", (ROOT / "pyproject.toml").read_text())
    assert sorted(map(int, named)) == sorted(script.PACKAGED)
