"""Compiles `loops.c` to the extension `_geminga_loops` for CPython on Linux.

    python geminga/loops/compile.py               # for this Python's environment
    python geminga/loops/compile.py DIRECTORY

Run as a file, by `run.py`, it imports nothing of Geminga.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

SOURCE = Path(__file__).with_name("loops.c")
FILE_NAME = "_geminga_loops.abi3.so"
COMPILERS = ("cc", "gcc", "clang")
# The prefix map and no build id: equal bytes from any folder.
FLAGS = ("-std=c11", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-unused-parameter")
LINK_FLAGS = ("-shared", "-Wl,--build-id=none", "-Wl,-s")
TIMEOUT_S = 4.5
"""Less than `run.py` waits, which would leave the compiler running."""


def source_hash(source: Path = SOURCE) -> str:
    """What the module has as `SOURCE`."""
    return sha256(source.read_bytes()).hexdigest()[:16]


def compiler() -> str | None:
    """The path of a C compiler; None if there is none."""
    return next(filter(None, map(shutil.which, COMPILERS)), None)


def obstacle() -> str | None:
    """Why nothing can be compiled here; None if it can."""
    if sys.platform != "linux" or sys.implementation.name != "cpython":
        return "not CPython on Linux"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "a Python without the interpreter's lock"
    if compiler() is None:
        return "no C compiler"
    if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
        return "no headers of Python"
    return None


def compile_loops(
    directory: Path,
    *,
    source: Path = SOURCE,
    flags: Sequence[str] = (),
    timeout_s: float = TIMEOUT_S,
) -> str | None:
    """Write the module into `directory`. Returns why it was not made, which may be the compiler's words."""
    found, reason = compiler(), obstacle()
    if found is None or reason is not None:
        return reason
    made = directory / f"{FILE_NAME}.{os.getpid()}"
    command = [found, *FLAGS, *flags, f"-I{sysconfig.get_path('include')}", *LINK_FLAGS]
    command += [f'-DSOURCE="{source_hash(source)}"', str(source), "-o", str(made)]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False
        )
        if done.returncode:
            return done.stderr.decode(errors="replace")
        os.replace(made, directory / FILE_NAME)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    finally:
        made.unlink(missing_ok=True)
    return None


if __name__ == "__main__":
    sys.exit(compile_loops(Path(sys.argv[1] if len(sys.argv) > 1 else sysconfig.get_path("platlib"))))
