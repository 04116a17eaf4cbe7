"""Plant each mutant alone in a copy of the checkout, and run its tests: they have to fail.

    python -m tests.mutants             all of them
    python -m tests.mutants NAME ...    only these

One line for each: `killed` (a test failed), `hung` (no end within the limit, which counts as killed),
`SURVIVED` (all tests passed), `NO FIT` (the text to be replaced is not there exactly once) or `BROKEN`
(pytest could not run the tests). Exit code 1 if any is neither killed nor hung.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.mutants.mutant import ROOT, DoesNotFit, Mutant, all_mutants, mutated

CPU_S_MAX = 60
"""Of one run of a mutant's tests."""
WALL_S_MAX = 300
"""Of one run of a mutant's tests; for those that wait without computing."""
CONTROL_S_MAX = 1800
"""Of the run of all named tests without a mutation."""
PYTEST = ("-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly")
KILLED, HUNG, SURVIVED, NO_FIT, BROKEN = "killed", "hung", "SURVIVED", "NO FIT", "BROKEN"


def copy_checkout(to: Path) -> None:
    """The tracked files and the new ones that are not ignored, as they are in the working tree."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout.decode()
    for name in filter(None, listed.split("\0")):
        source, target = ROOT / name, to / name
        # What is deleted in the working tree is still listed; a linked .venv may be listed, too.
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def run_tests(
    tests: tuple[str, ...], checkout: Path, *, cpu_s_max: int, wall_s_max: int, writes_bytecode: bool = False
) -> tuple[int | None, str]:
    """Exit code of pytest, or None if it did not end within the limits; and what it wrote."""
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    if not writes_bytecode:
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [sys.executable, *PYTEST, *tests],
            cwd=checkout,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (cpu_s_max, cpu_s_max)),
        )
        try:
            code: int | None = process.wait(wall_s_max)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            # Its children as well: a failed test may leave a broker behind.
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
        output.seek(0)
        text = output.read().decode(errors="replace")
    return None if code in (-signal.SIGXCPU, -signal.SIGKILL) else code, text


def judge(mutant: Mutant, checkout: Path) -> tuple[str, str]:
    """What became of this mutant, and what there is to say about it. The copy is left as it was."""
    path = checkout / mutant.path
    try:
        bug = mutated(mutant, checkout)
    except DoesNotFit as error:
        return NO_FIT, str(error)
    original, times = path.read_bytes(), path.stat()
    path.write_text(bug, encoding="utf-8")
    # Python takes compiled code for current by the second and the size.
    os.utime(path, (times.st_atime, times.st_mtime + 10))
    try:
        code, output = run_tests(mutant.tests, checkout, cpu_s_max=CPU_S_MAX, wall_s_max=WALL_S_MAX)
    finally:
        path.write_bytes(original)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    if code is None:
        return HUNG, f"not done after {CPU_S_MAX} s of CPU or {WALL_S_MAX} s"
    if code == 0:
        return SURVIVED, mutant.untested
    if code != 1:
        return BROKEN, f"pytest ended with {code}:\n{output}"
    failed = [line[7:].split(" - ")[0] for line in output.splitlines() if line.startswith("FAILED ")]
    return KILLED, failed[0].split("::")[-1] if failed else "by an error outside the tests themselves"


def chosen(names: list[str]) -> tuple[Mutant, ...]:
    mutants = all_mutants()
    if unknown := set(names) - {mutant.name for mutant in mutants}:
        sys.exit(f"no such mutant: {', '.join(sorted(unknown))}")
    return tuple(mutant for mutant in mutants if not names or mutant.name in names)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("names", metavar="NAME", nargs="*", help="only this mutant")
    mutants = chosen(parser.parse_args().names)
    if not mutants:
        sys.exit("there are no tables of mutants")
    with tempfile.TemporaryDirectory(prefix="geminga-mutants-") as directory:
        checkout = Path(directory)
        copy_checkout(checkout)
        tests = tuple(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
        code, output = run_tests(
            tests, checkout, cpu_s_max=CONTROL_S_MAX, wall_s_max=CONTROL_S_MAX, writes_bytecode=True
        )
        if code != 0:
            print(f"{output}\nThe tests do not pass without a mutation.")
            return 1
        dead = 0
        for mutant in mutants:
            verdict, remark = judge(mutant, checkout)
            dead += verdict in (KILLED, HUNG)
            print(f"{verdict:8} {mutant.name} ({remark})", flush=True)
    print(f"{dead} of {len(mutants)} killed")
    return 0 if dead == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
