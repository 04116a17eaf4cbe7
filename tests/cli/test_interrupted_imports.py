"""Ctrl-C while the command line is still being imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

from geminga import __main__
from geminga.cli.arguments.parser import EXIT_INTERRUPTED

INTERRUPTED = """
import runpy, signal, sys

class Finder:
    def find_spec(self, name, *rest):
        if name == {name!r}:
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Finder())
sys.argv = ["geminga", "status"]
runpy.run_module("geminga", run_name="__main__")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="a signal ends the process at once there")
@pytest.mark.parametrize(
    "name", ["geminga.cli.main", "argparse", "geminga.cli.watch.status", "geminga.cli.client.addresses"]
)
def test_an_interrupt_within_an_import_ends_the_command_quietly(name: str) -> None:
    code = ["-c", INTERRUPTED.format(name=name)]
    done = subprocess.run([sys.executable, "-P", *code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (EXIT_INTERRUPTED, "", "")


def test_the_exit_code_is_that_of_other_interrupts() -> None:
    assert __main__.EXIT_INTERRUPTED == EXIT_INTERRUPTED
