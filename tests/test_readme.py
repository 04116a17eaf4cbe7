"""README.md: every command block runs as it stands, and the page works without the files beside it.

The shell or Python runs a block. `python3 run.py` is this checkout's `geminga`, so that nothing is installed.
A broker that a block starts without naming ports gets free ones; client commands find it by GEMINGA_URL and
GEMINGA_WEB_URL, and in a block of Python its URL replaces the default one.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import textwrap
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import geminga
from tests.e2e.child_process import start_child
from tests.testing.plugin_arguments import plugin_arguments

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
BLOCK = re.compile(r"^ *```(?P<kind>\w*)\n(?P<text>.*?)^ *```$", re.DOTALL | re.MULTILINE)
BROKER = re.compile(r"^python3 run\.py standalone\b[^|&>]*$")
"""A block of this one line runs until it is told to stop."""
DEFAULT_URL = "pulsar://127.0.0.1:6650"
SECONDS_MAX = 60
CELL_CHARACTERS_MAX = 120
STAND_IN = """#!{python} -P
import os, sys
arguments = sys.argv[1:]
assert arguments[0] == "run.py", arguments
if arguments[1] == "standalone":
    for flag, value in (("--port", "0"), ("--web-port", "0")):
        arguments += [] if flag in arguments else [flag, value]
os.execv({python!r}, [{python!r}, "-P", "-m", "geminga", *arguments[1:]])
"""


class Block(NamedTuple):
    kind: str
    text: str
    line: int


def blocks() -> list[Block]:
    page = README.read_text()
    return [
        Block(found["kind"], textwrap.dedent(found["text"]), page.count("\n", 0, found.start()) + 1)
        for found in BLOCK.finditer(page)
    ]


class Terminal:
    """A directory where blocks are run, one after the other, as a reader would paste them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        tools = directory / "tools"
        tools.mkdir()
        stand_in = tools / "python3"
        stand_in.write_text(STAND_IN.format(python=sys.executable))
        stand_in.chmod(stat.S_IRWXU)
        self.environment = os.environ | {
            "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "HOME": str(directory),
        }
        self.environment.pop("XDG_DATA_HOME", None)  # the default data directory is below HOME then
        self.broker: subprocess.Popen[Any] | None = None
        self.ready: dict[str, Any] = {}

    def run(self, block: Block) -> str:
        """What it prints. A block that starts a broker leaves it running, in place of the one before."""
        if block.kind == "sh" and BROKER.match(block.text.strip()):
            self.stop()
            self._start(block)
            return ""
        if block.kind == "python":
            text = block.text.replace(DEFAULT_URL, self.ready["binary"])
            command = [sys.executable, "-P", "-c", text]
            if "def test_" in text:
                file = self.directory / f"test_line_{block.line}.py"
                file.write_text(text)
                options = ["--rootdir", str(self.directory), "-c", os.devnull, "-p", "no:cacheprovider"]
                command = [
                    sys.executable,
                    "-P",
                    "-m",
                    "pytest",
                    "-q",
                    *plugin_arguments(),
                    *options,
                    str(file),
                ]
        else:
            command = ["bash", "-euc", block.text]
        done = subprocess.run(
            command,
            cwd=self.directory, env=self.environment, capture_output=True, text=True, timeout=SECONDS_MAX,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, f"README.md:{block.line}: {done.stdout}{done.stderr}"
        return done.stdout

    def _start(self, block: Block) -> None:
        with (self.directory / "log").open("ab") as log:
            self.broker = start_child(
                ["bash", "-euc", f"exec {block.text}"],
                cwd=self.directory, env=self.environment, stdout=subprocess.PIPE, stderr=log,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        assert self.broker.stdout is not None
        line = self.broker.stdout.readline()
        assert line, (self.directory / "log").read_text()
        self.ready = json.loads(line)
        self.environment |= {"GEMINGA_URL": self.ready["binary"], "GEMINGA_WEB_URL": self.ready["web"]}

    def stop(self) -> None:
        """As Ctrl-C does."""
        if self.broker is not None:
            broker, self.broker = self.broker, None
            broker.terminate()
            assert broker.wait(SECONDS_MAX) == 0
            assert broker.stdout is not None
            broker.stdout.close()


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    made = Terminal(tmp_path)
    yield made
    made.stop()


def test_blocks_say_what_they_are() -> None:
    kinds = {block.kind for block in blocks()}
    assert kinds == {"sh", "python", "json"}
    outside = BLOCK.sub("", README.read_text())
    assert not [line for line in outside.splitlines() if line.startswith("    ")], (
        "a block without a fence is not run"
    )


@pytest.mark.skipif(sys.platform == "win32", reason="the blocks are for a POSIX shell")
def test_every_block_runs(terminal: Terminal) -> None:
    printed = {}
    for block in blocks():
        if block.kind == "json":
            continue
        if "bookie" in block.text:  # it says that no broker may run
            terminal.stop()
        printed[block.text] = terminal.run(block)

    def said(part: str) -> str:
        """By the one block with this in it."""
        [text] = [text for text in printed if part in text]
        return printed[text]

    lines = said("two seconds later").splitlines()
    assert [line for line in lines if line.startswith("b'")] == ["b'now'", "b'two seconds later'"]
    assert said("produce orders -m hello").split()[-3:] == ["hello", "world", "later"]
    assert "1 passed" in said("def test_")
    assert json.loads(said("mktemp -d"))["event"] == "ready"


def test_the_ready_line_has_the_fields_that_are_shown(terminal: Terminal) -> None:
    [shown] = [json.loads(block.text) for block in blocks() if block.kind == "json"]
    terminal.run(Block("sh", "python3 run.py standalone", 0))
    assert terminal.ready.keys() == shown.keys()
    assert {key: type(value) for key, value in terminal.ready.items()} == {
        key: type(value) for key, value in shown.items()
    }


@pytest.mark.parametrize("page", ["README.md", "docs/settings.md", "docs/compatibility.md", "SECURITY.md"])
def test_cells_of_tables_fit_a_screen(page: str) -> None:
    rows = [line for line in (ROOT / page).read_text().splitlines() if line.startswith("|")]
    assert rows
    cells = [cell.strip() for row in rows for cell in row.strip("|").split("|")]
    assert not [cell for cell in cells if len(cell) > CELL_CHARACTERS_MAX]


# ---------------------------------------------------------------------------------- on a package index


def index_page(readme: str) -> str:
    spec = importlib.util.spec_from_file_location("setup_script", ROOT / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    text: str = script.for_package_index(readme)
    return text


def test_links_become_names_for_a_package_index() -> None:
    page = index_page(
        "# T\n\n![a\npicture](docs/p.png)\n\n[docs/a.md](docs/a.md) [`x.md`](x.md) "
        "[the rules](docs/b.md#part), [below](#here) [Pulsar](https://example.org/x)\n"
    )
    assert page.endswith(
        "\n`docs/a.md` `x.md` the rules (`docs/b.md`), below [Pulsar](https://example.org/x)\n"
    )
    assert page.startswith("# T\n\n*Files named on this page")


def test_the_page_for_a_package_index_needs_no_file_beside_it() -> None:
    page = index_page(README.read_text())
    assert not re.findall(r"\]\((?!https://)[^)]*\)", page)
    assert "docs/settings.md" in page


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source distribution and a wheel, built from a copy, as build tools do."""
    directory = tmp_path_factory.mktemp("built")
    source = directory / "source"
    source.mkdir()
    for name in ("geminga", "docs", "locks"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file in [*ROOT.glob("*.md"), *(ROOT / name for name in FILES)]:
        shutil.copy(file, source)
    build = "from setuptools import build_meta as b; b.build_sdist('..'); b.build_wheel('..')"
    done = subprocess.run(
        [sys.executable, "-P", "-c", build], cwd=source, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return directory


FILES = ("pyproject.toml", "setup.py", "run.py", "LICENSE", "MANIFEST.in")


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return message_from_bytes(archive.read(name))


def test_a_wheel_has_licence_metadata_and_the_version_of_the_package(built: Path) -> None:
    [wheel] = built.glob("*.whl")
    metadata = metadata_of(wheel)
    assert metadata["Version"] == geminga.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Author"] == "The Geminga authors"
    assert metadata["Description-Content-Type"].startswith("text/markdown")
    with zipfile.ZipFile(wheel) as archive:
        [licence] = [name for name in archive.namelist() if name.endswith(".dist-info/licenses/LICENSE")]
        assert archive.read(licence) == (ROOT / "LICENSE").read_bytes()
        assert not [
            name for name in archive.namelist() if name.startswith(("tests/", "bench/", "simulation/"))
        ]


def test_a_source_distribution_has_every_file_that_the_readme_names(built: Path) -> None:
    [source] = built.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    linked = set(re.findall(r"\]\((?!https:|#)([^)#]+)", README.read_text()))
    assert linked
    assert linked <= names
    assert {"LICENSE", "run.py", "locks/run.txt", "docs/settings.md"} <= names
