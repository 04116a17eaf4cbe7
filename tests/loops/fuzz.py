"""Compares the loops in C with those in Python on frames that are real, damaged, cut or made up.

    python -m tests.loops.fuzz                               # what is compiled now, 20,000 frames
    python -m tests.loops.fuzz --frames 1000000 --sanitized  # with address and undefined-behaviour sanitizers
    python -m tests.loops.fuzz --seed 7 --source other.c

Compiles `loops.c` into a temporary directory. Each loop is called with failing allocations, too: it must
raise MemoryError, or do without. No call may keep memory or a reference. Ends with 0 if all is equal.
"""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

from geminga.loops import compile as compiling
from geminga.managed_ledger.chain.entry import Entry
from geminga.position import Position
from geminga.wire.peek import Peek
from tests.loops import cases, twins

ROOT = Path(__file__).resolve().parents[2]

SANITIZERS = (
    "-O1",
    "-g",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-fno-omit-frame-pointer",
)
LOOPS: dict[str, Callable[[Random], tuple[cases.Arguments, int]]] = {
    "scan_sends": cases.sends,
    "scan_ack": cases.acks,
    "receipts": cases.receipts,
    "messages": cases.messages,
    "pack_records": cases.groups,
    "peek_entries": cases.entries,
}
"""Each loop and what makes its arguments."""
ROUNDS = 200
BLOCKS_MAX = 50
"""So many blocks of memory more after `ROUNDS` calls are no leak."""


class Difference(Exception):
    """The two do not agree, or memory was kept."""


def load(path: Path) -> ModuleType:
    """The compiled module, from a file anywhere."""
    loader = ExtensionFileLoader("_geminga_loops", str(path))
    spec = spec_from_loader("_geminga_loops", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def compare(native: ModuleType, frames: int, seed: int) -> dict[str, int]:
    """Raise `Difference` at the first one. Returns how many frames each loop took of at least `frames`."""
    random = Random(seed)
    taken = dict.fromkeys(LOOPS, 0)
    while sum(taken.values()) < frames:
        for name, make in LOOPS.items():
            # An ACK is one frame, however many ids it has; the others come in tens.
            for _ in range(10 if name == "scan_ack" else 1):
                arguments, count = make(random)
                compare_one(native, name, arguments)
                taken[name] += count
    return taken


def compare_one(native: ModuleType, name: str, arguments: cases.Arguments) -> None:
    wanted = getattr(twins, name)(*arguments)
    given = twins.fields(name, arguments)
    found = getattr(native, name)(*given)
    if name == "peek_entries":
        found = [entry.peek for entry in given[0]]
    if found != wanted:
        raise Difference(f"{name}{arguments!r:.3000}\n  Python: {wanted!r:.1000}\n  C:      {found!r:.1000}")


def wrong_arguments(native: ModuleType) -> None:
    """What no caller passes raises, and does nothing else."""
    ids, big = [1, 2], bytes(13)
    wrong: list[tuple[str, tuple[Any, ...]]] = [
        *(("scan_sends", (bytes(20), at, 100, 1, b"")) for at in (-1, 21, 2**62, -(2**62))),
        ("scan_sends", (bytearray(20), 0, 100, 1, b"")),
        ("scan_sends", (bytes(20), 0, 100, 1, bytes(65))),
        *(
            ("scan_ack", (bytes(20), at, end))
            for at, end in ((-1, 20), (0, 21), (5, 4), (0, -1), (2**62, 2**62))
        ),
        ("scan_ack", ("text", 0, 1)),
        ("receipts", (big, b"", ids, ids, 0)),
        ("receipts", (b"", big, ids, ids, 0)),
        ("receipts", (b"", b"", ids, [0], 0)),
        ("receipts", (b"", b"", ids, (0, 0), 0)),
        ("receipts", (b"", b"", [1, -1], ids, 0)),
        ("receipts", (b"", b"", ids, [1, 2**64], 0)),
        ("receipts", (b"", b"", [None, 1], ids, 0)),
        ("receipts", (b"", b"", ids, ids, -1)),
        ("messages", (big, b"", [], [], False, 9)),
        ("messages", (b"", big, [], [], False, 9)),
        ("messages", (b"", b"", [(1, 2)], [], False, 9)),
        ("messages", (b"", b"", [(1,)], [b""], False, 9)),
        ("messages", (b"", b"", [[1, 2]], [b""], False, 9)),
        ("messages", (b"", b"", [(1, -2)], [b""], False, 9)),
        ("messages", (b"", b"", [(1, 2), (1, "2")], [b"", b""], False, 9)),
        ("messages", (b"", b"", [(1, 2)], ["body"], False, 9)),
        ("peek_entries", ((), Peek)),
        ("peek_entries", ([Entry(Position(1, 2), "text")], Peek)),  # type: ignore[arg-type]
        ("peek_entries", ([None], Peek)),
        ("pack_records", (b"", [(1, 2)])),
        ("pack_records", (b"", [[1, 2, []]])),
        ("pack_records", (b"", [(1, -2, [])])),
        ("pack_records", (b"", [(1, 2, [b"one"]), (1, 2, [b"one", "two"])])),
        ("pack_records", (b"", [(1, 2, (b"one",))])),
        ("pack_records", ("", [])),
    ]
    for name, arguments in wrong:
        try:
            found = getattr(native, name)(*arguments)
        except (TypeError, ValueError, OverflowError, AttributeError):
            continue
        raise Difference(f"{name}{arguments!r} is not refused: {found!r}")


def usual_arguments(seed: int) -> list[tuple[str, cases.Arguments]]:
    random = Random(seed)
    return [(name, twins.fields(name, make(random)[0])) for _ in range(20) for name, make in LOOPS.items()]


def references(arguments: cases.Arguments) -> int:
    """To all that a loop may forget to give back. Numbers are left out: small ones are shared by all."""
    found = list(arguments)
    for argument in found:
        if isinstance(argument, list | tuple):
            found += argument
    return sum(sys.getrefcount(each) for each in found if not isinstance(each, int))


def keeps_nothing(native: ModuleType, seed: int) -> None:
    """The memory in use and the references to arguments after many calls are those before."""
    for name, arguments in usual_arguments(seed):
        loop = getattr(native, name)
        loop(*arguments)
        gc.collect()
        before, held = sys.getallocatedblocks(), references(arguments)
        for _ in range(ROUNDS):
            loop(*arguments)
        if sys.getallocatedblocks() - before > BLOCKS_MAX or references(arguments) - held > 1:
            raise Difference(f"{name}{arguments!r:.1000} keeps memory or references")
    before = sys.getallocatedblocks()
    for _ in range(ROUNDS):
        wrong_arguments(native)
    gc.collect()
    if sys.getallocatedblocks() - before > BLOCKS_MAX:
        raise Difference("memory is kept when arguments are refused")


def without_memory(native: ModuleType, seed: int) -> int:
    """Each allocation of a call fails once: MemoryError, the usual result, and nothing is kept. Returns how
    many did; 0 where this Python cannot make them fail.
    """
    try:
        from _testcapi import remove_mem_hooks, set_nomemory
    except ImportError:
        return 0
    failures = 0
    for name, arguments in usual_arguments(seed):
        loop = getattr(native, name)
        wanted = loop(*arguments)
        gc.collect()
        before, held = sys.getallocatedblocks(), references(arguments)
        for number in range(10_000):
            found: Any = None
            failed = False
            set_nomemory(number, number + 1)
            try:
                found = loop(*arguments)
            except MemoryError:
                failed = True
            finally:
                remove_mem_hooks()
            if not failed:
                if found != wanted:
                    raise Difference(
                        f"{name}{arguments!r:.1000} with allocation {number} failed: {found!r:.1000}"
                    )
                break
            failures += 1
        found = None
        gc.collect()
        if sys.getallocatedblocks() - before > BLOCKS_MAX or references(arguments) - held > 1:
            raise Difference(f"{name}{arguments!r:.1000} keeps memory or references when memory is out")
    return failures


def run(module: Path, frames: int, seed: int) -> None:
    native = load(module)
    began_s = time.monotonic()
    taken = compare(native, frames, seed)
    wrong_arguments(native)
    keeps_nothing(native, seed)
    failures = without_memory(native, seed)
    told = ", ".join(f"{name} {count}" for name, count in taken.items())
    print(f"equal: {told}; {failures} failed allocations; {time.monotonic() - began_s:.1f} s", flush=True)


def sanitized_environment() -> dict[str, str]:
    """Python itself is not built with the sanitizers, so their library comes first. Its own memory is that of
    malloc, where a read past the end of an object is seen.
    """
    compiler = compiling.compiler()
    assert compiler is not None
    libraries = [
        subprocess.check_output([compiler, f"-print-file-name={name}"], text=True).strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    # Python keeps some of its memory until the end, which is no leak of a loop.
    return {"LD_PRELOAD": " ".join(libraries), "ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc"}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--frames", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sanitized", action="store_true")
    parser.add_argument("--source", type=Path, default=compiling.SOURCE, help="another loops.c")
    parser.add_argument("--module", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.module is not None:
        run(options.module, options.frames, options.seed)
        return 0
    with tempfile.TemporaryDirectory() as directory:
        flags = SANITIZERS if options.sanitized else ()
        reason = compiling.compile_loops(Path(directory), source=options.source, flags=flags, timeout_s=120)
        if reason is not None:
            print(f"not compiled: {reason}", file=sys.stderr)
            return 2
        command = [sys.executable, "-m", "tests.loops.fuzz", "--frames", str(options.frames)]
        command += ["--seed", str(options.seed), "--module", str(Path(directory) / compiling.FILE_NAME)]
        environment = sanitized_environment() if options.sanitized else {}
        # The twins are what the broker runs without C.
        environment = {**os.environ, **environment, "GEMINGA_PURE": "1"}
        return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
