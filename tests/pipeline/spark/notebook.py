"""Runs the cells of docs/pipeline-notebook.md in order, against a real broker and Spark, and writes into the
page what they print:

    python -m tests.pipeline.spark.notebook            # make the page's outputs anew
    python -m tests.pipeline.spark.notebook --check    # write nothing; exit code 1 if an output is another

A cell is a block ```python, run in one namespace, or a block ```console, whose lines with `$ ` are run as
commands (`geminga` is this checkout's). What follows as a block ```text is the output of a python cell. All
runs in a new directory; a picture that the page shows and a cell makes is taken over.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "pipeline-notebook.md"
CELL = re.compile(
    r"^```(?P<kind>python|console)\n(?P<code>.*?)^```\n(?:\n```text\n(?P<output>.*?)^```\n)?",
    re.DOTALL | re.MULTILINE,
)
PICTURE = re.compile(r"!\[[^]]*\]\(pictures/(?P<name>[^)]+)\)")
COMMAND_SECONDS_MAX = 300


class Cell(NamedTuple):
    """One block of the page."""

    kind: str
    code: str
    output: str
    line: int


def cells_of(page: str) -> Iterator[Cell]:
    """In order."""
    for found in CELL.finditer(page):
        yield Cell(
            found["kind"], found["code"], found["output"] or "", page.count("\n", 0, found.start()) + 1
        )


class Notebook:
    """One session. What cells start they are to stop; `close` ends a broker that an error left."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {"__name__": "__main__"}

    def text_of(self, found: re.Match[str]) -> str:
        """The cell as it stands in the page after it ran."""
        if found["kind"] == "console":
            return f"```console\n{''.join(self._commands(found['code']))}```\n"
        # As many lines before it as in the page: a traceback names the page's line.
        printed = self._run("\n" * (found.string.count("\n", 0, found.start()) + 1) + found["code"])
        text = f"```python\n{found['code']}```\n"
        return text + (f"\n```text\n{printed}```\n" if printed else "")

    def _run(self, code: str) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(compile(code, str(PAGE), "exec"), self.names)
        lines = [line.rstrip() for line in printed.getvalue().splitlines()]
        while lines and not lines[-1]:
            lines.pop()
        return "".join(f"{line}\n" for line in lines)

    def _commands(self, code: str) -> Iterator[str]:
        for line in code.splitlines():
            if not line.startswith("$ "):
                continue
            yield line + "\n"
            words = [os.path.expandvars(word) for word in shlex.split(line[2:])]
            assert words[0] == "geminga", line
            done = subprocess.run(
                [sys.executable, "-m", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                timeout=COMMAND_SECONDS_MAX,
            )  # fmt: skip
            yield done.stdout

    def close(self) -> None:
        broker = self.names.get("broker")
        if isinstance(broker, subprocess.Popen) and broker.poll() is None:
            broker.kill()
            broker.wait()


def executed(page: str, directory: Path) -> str:
    """The page with new outputs; its pictures are in the directory then."""
    notebook = Notebook()
    try:
        with contextlib.chdir(directory):
            return CELL.sub(notebook.text_of, page)
    finally:
        notebook.close()


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the outputs of docs/pipeline-notebook.md anew.")
    parser.add_argument("--check", action="store_true", help="compare only")
    flags = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    before = PAGE.read_text()
    directory = Path(tempfile.mkdtemp(prefix="notebook-"))
    try:
        page = executed(before, directory)
        if flags.check:
            sys.stdout.writelines(
                difflib.unified_diff(before.splitlines(True), page.splitlines(True), "page", "run")
            )
            if page == before:
                print(f"{len(list(cells_of(page)))} cells print what stands in {PAGE.name}")
            return 0 if page == before else 1
        PAGE.write_text(page)
        for found in PICTURE.finditer(page):
            if (directory / found["name"]).exists():
                shutil.copy(directory / found["name"], PAGE.parent / "pictures" / found["name"])
        return 0
    except Exception:
        traceback.print_exc()
        return 2
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
