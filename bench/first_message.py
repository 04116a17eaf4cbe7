"""From a wheel in an empty directory to the first message: a user of its own, and no network at all.

    python -m build
    pip download --only-binary=:all: -d wheels -r locks/run.txt
    python bench/first_message.py dist/geminga-*.whl wheels [--python python3.12] [--user daemon]

`--user` needs root. Prints the seconds of each step, and exits with 1 if installing and sending the
first message take more than 60 together. The Python needs `venv`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SECONDS_MAX = 60.0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheel", type=Path)
    parser.add_argument("wheels", type=Path, help="directory with the wheels of the dependencies")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--user")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if not flags.inside:
        inside = f'ip link set lo up; exec "$@" --inside --python {shutil.which(flags.python)}'
        again = [sys.executable, str(Path(__file__).resolve()), *sys.argv[1:]]
        os.execvp("unshare", ["unshare", "-n" if flags.user else "-rn", "sh", "-c", inside, "sh", *again])
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for file in (flags.wheel, *flags.wheels.glob("*.whl")):
            shutil.copy(file, directory)
        if flags.user:
            for path in (directory, *directory.iterdir()):
                shutil.chown(path, flags.user)
        return measure(directory, flags.wheel.name, flags.python, flags.user)


def measure(directory: Path, wheel: str, python: str, user: str | None) -> int:
    environment = {"HOME": str(directory), "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}

    def start(*command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command, cwd=directory, env=environment, user=user, stdout=subprocess.PIPE, text=True
        )

    def run(step: str, *command: str) -> float:
        began_s = time.monotonic()
        with start(*command) as process:
            printed = process.communicate()[0]
        assert process.returncode == 0, printed
        seconds = time.monotonic() - began_s
        print(f"{seconds:6.2f} s  {step}")
        return seconds

    run("python -m venv", python, "-m", "venv", "env")
    total_s = run("pip install", "env/bin/pip", "install", "-q", "--no-index", "--find-links", ".", wheel)
    began_s = time.monotonic()
    with start("env/bin/geminga", "standalone", "--data-dir", "data") as broker:
        try:
            assert broker.stdout is not None
            assert broker.stdout.readline(), "the broker did not start"
            print(f"{time.monotonic() - began_s:6.2f} s  the broker is ready")
            run("geminga produce", "env/bin/geminga", "produce", "first", "-m", "hello")
            run(
                "geminga consume",
                "env/bin/geminga",
                "consume",
                "first",
                "-s",
                "s",
                "-n",
                "1",
                "--from",
                "earliest",
            )
            total_s += time.monotonic() - began_s
        finally:
            broker.terminate()
    print(f"{total_s:6.2f} s  from pip install to the first message received")
    return 0 if total_s <= SECONDS_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
