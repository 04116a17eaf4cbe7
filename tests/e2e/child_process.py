"""Child processes that end with the process that started them, however it ends (on Linux).

The kernel does it: PR_SET_PDEATHSIG, which the child sets before it becomes the command. A `preexec_fn` could
set it as well, but runs Python between fork and exec, where the locks of other threads stay locked forever,
and the official client has many threads.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

BECOME_COMMAND = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
parent_pid = int(sys.argv[1])
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if parent_pid and os.getppid() != parent_pid:
    sys.exit("the parent ended first")
os.execvp(sys.argv[2], sys.argv[2:])
"""

_starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="child-starter")
"""The signal comes when the thread that forked ends, not its process. This thread ends with the process."""


def ends_with_parent(command: Sequence[str], parent_pid: int = 0) -> list[str]:
    """A command that becomes `command`, bound to its parent; 0 stands for whatever parent it then has."""
    if sys.platform != "linux":
        return list(command)
    return [sys.executable, "-I", "-S", "-c", BECOME_COMMAND, str(parent_pid), *command]


def start_child(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """`subprocess.Popen(command, **options)`, bound to this process. Any thread may call it."""
    bound = ends_with_parent(command, os.getpid())
    return _starter.submit(subprocess.Popen, bound, **options).result()


@contextlib.contextmanager
def running(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """A child that is killed at the end of the block, unless it has ended by then.

    `with Popen(...)` waits at the end instead: a failed assertion would wait for a broker forever.
    """
    with start_child(command, **options) as process:
        try:
            yield process
        finally:
            process.kill()
