"""No broker outlives the test that started it: not when the test fails, nor when its process is killed."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.broker_process import ROOT, BrokerProcess
from tests.e2e.child_process import running, start_child
from tests.e2e.waiting import eventually

pytestmark = [
    pytest.mark.geminga_only,
    pytest.mark.skipif(sys.platform != "linux", reason="needs pidfd_open and PR_SET_PDEATHSIG of Linux"),
]
HUNG_SECONDS = 60
STARTER = """
import sys, threading
from pathlib import Path
from tests.e2e.broker_process import BrokerProcess

broker = BrokerProcess(Path(sys.argv[1]))
if sys.argv[2] == "in a thread that ends":
    thread = threading.Thread(target=broker.start)
    thread.start()
    thread.join()
else:
    broker.start()
assert broker.endpoints
print(broker.pid, flush=True)
sys.stdin.read()
"""


class Watched:
    """A process by its pidfd, which stays the same process's when the pid is given to another."""

    def __init__(self, pid: int) -> None:
        self.descriptor = os.pidfd_open(pid)

    def ends(self, timeout_s: float = HUNG_SECONDS) -> bool:
        # Not `select.select`, which takes no descriptor above 1023.
        poll = select.poll()
        poll.register(self.descriptor, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))


@contextlib.contextmanager
def watched(pid: int) -> Iterator[Watched]:
    """Kills the process at the end, for the case that it is still there."""
    process = Watched(pid)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(process.descriptor, signal.SIGKILL)
        os.close(process.descriptor)


@pytest.mark.parametrize("where", ["in the main thread", "in a thread that ends"])
def test_a_broker_ends_when_the_process_that_started_it_is_killed(tmp_path: Path, where: str) -> None:
    command = [sys.executable, "-c", STARTER, str(tmp_path / "data"), where]
    with (
        running(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as starter,
        watched(int(starter.stdout.readline())) as broker,
    ):
        assert not broker.ends(timeout_s=0)
        starter.kill()
        assert broker.ends()


def test_a_child_that_a_thread_started_outlives_the_thread() -> None:
    command = [sys.executable, "-c", "import sys; print('up', flush=True); print(sys.stdin.read())"]
    children: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        children.append(start_child(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        assert children[0].stdout is not None
        assert children[0].stdout.readline() == b"up\n"

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    eventually(lambda: not Path(f"/proc/self/task/{thread.native_id}").exists())
    with children[0] as child:
        assert child.communicate(b"still there")[0] == b"still there\n"


def test_a_block_that_raises_leaves_no_broker(tmp_path: Path) -> None:
    with contextlib.ExitStack() as after:
        with pytest.raises(ZeroDivisionError), BrokerProcess(tmp_path / "data") as broker:  # noqa: PT012
            process = after.enter_context(watched(broker.pid))
            1 / 0  # noqa: B018
        assert process.ends(timeout_s=0)
        assert not broker.is_running()


def test_a_block_that_ends_well_stops_the_broker_in_good_order(tmp_path: Path) -> None:
    with contextlib.ExitStack() as after:
        with BrokerProcess(tmp_path / "data") as broker:
            process = after.enter_context(watched(broker.pid))
        assert process.ends(timeout_s=0)
        assert "SIGTERM: stopping" in broker.log_tail()


def test_a_broker_that_ended_by_itself_fails_the_block(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data")
    broker.start()
    with watched(broker.pid) as process:
        os.kill(broker.pid, signal.SIGKILL)
        assert process.ends()
    with pytest.raises(AssertionError, match="ended by itself with code -9"):
        broker.__exit__(None, None, None)


def test_a_start_that_fails_leaves_no_process(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", settings={"noSuchKey": "1"})
    with pytest.raises(AssertionError, match="no ready line"), broker:
        pass
    assert not broker.is_running()
    assert "noSuchKey" in broker.log_tail()
