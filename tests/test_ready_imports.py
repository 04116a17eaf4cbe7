"""Start-up is budgeted: which modules are imported before both ports answer is a list that a person has read.

GEMINGA_WRITE=1 python -m pytest tests/test_ready_imports.py    # write the list anew, then read its diff
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

LIST = Path(__file__).with_name("ready_imports.txt")
PROGRAM = """
import os, signal, sys, threading

def note_modules():
    # The ready line is the first thing that the broker writes there.
    assert b'"ready"' in os.read(reader, 1000)
    with open(sys.argv[1], "w") as file:
        file.write("\\n".join(sorted(sys.modules)))
    os.kill(os.getpid(), signal.SIGTERM)

reader, writer = os.pipe()
os.dup2(writer, 1)
threading.Thread(target=note_modules, daemon=True).start()
from geminga.cli.main import main
sys.exit(main(["standalone", "--port=0", "--web-port=0", "--data-dir", sys.argv[2]]))
"""


def imported_before_ready(tmp_path: Path) -> list[str]:
    """All modules of Geminga by full name, and the names of the other packages that are not Python's own."""
    found = tmp_path / "modules.txt"
    program = [sys.executable, "-P", "-c", PROGRAM, str(found), str(tmp_path / "data")]
    ended = subprocess.run(program, stderr=subprocess.PIPE, text=True)
    assert ended.returncode == 0, ended.stderr
    ours, others = set(), set()
    for name in found.read_text().split("\n"):
        package = name.split(".")[0]
        if package == "geminga":
            ours.add(name)
        elif package not in sys.stdlib_module_names and not package.startswith(("_", "sitecustomize")):
            others.add(package)
    return [*sorted(others), *sorted(ours)]


def test_what_is_imported_before_the_broker_is_ready_is_on_the_list(tmp_path: Path) -> None:
    found = imported_before_ready(tmp_path)
    if os.environ.get("GEMINGA_WRITE"):
        LIST.write_text("\n".join(found) + "\n")
    listed = LIST.read_text().split()
    assert sorted(set(found) - set(listed)) == [], "imported before the broker is ready, and not on the list"
    ours = {name for name in listed if name.startswith("geminga")}
    assert sorted(ours - set(found)) == [], "on the list, and no longer imported before it is ready"
