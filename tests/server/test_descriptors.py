"""How the limit of open files is divided, and that it is raised."""

from __future__ import annotations

import subprocess
import sys

import pytest

from geminga.server.descriptors import CONNECTIONS_MIN, WEB_CONNECTIONS_MAX, Division, divide

LIMITS = [256, 512, 1024, 4096, 20_000, 1 << 20]


def test_two_common_limits() -> None:
    assert divide(256, journals=1, ledger_directories=1) == Division(151, 79, 26)
    assert divide(1024, journals=1, ledger_directories=1) == Division(239, 589, 196)


@pytest.mark.parametrize("files_max", LIMITS)
def test_nothing_is_given_twice_and_no_port_is_left_out(files_max: int) -> None:
    for journals, ledger_directories in ((1, 1), (3, 1), (4, 8)):
        found = divide(
            files_max, journals=journals, ledger_directories=ledger_directories, writes_delivery_log=True
        )
        connections = found.binary_connections_max + found.web_connections_max
        assert connections == max(CONNECTIONS_MIN, files_max - found.reserved)
        assert 4 <= found.web_connections_max <= WEB_CONNECTIONS_MAX
        assert found.web_connections_max < found.binary_connections_max


@pytest.mark.skipif(sys.platform == "win32", reason="no such limit there")
def test_the_soft_limit_becomes_the_hard_one() -> None:
    asks = (
        "import resource; from geminga.server.descriptors import raise_files_max; "
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 300)); "
        "print(raise_files_max(), *resource.getrlimit(resource.RLIMIT_NOFILE), raise_files_max())"
    )
    done = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["300", "300", "300", "300"]
