"""The test helpers for Go and the JVM, tried with their real clients: ten tests each.

    python -m tests.kits.live go
    python -m tests.kits.live java JAR...        JUnit's console launcher and the jars of Pulsar's client

Needs `go` with pulsar-client-go in its module cache, or a JDK of 17 or newer. Each kit is one file below
`kits/` that users copy; a copy of it is compiled together with its tests in a folder of its own.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run_go(folder: Path, environment: dict[str, str]) -> int:
    for directory in (ROOT / "kits/go", ROOT / "tests/kits/go"):
        shutil.copytree(directory, folder, dirs_exist_ok=True)
    for name in ("go.mod", "go.sum"):
        shutil.copy(ROOT / "bench/go_client" / name, folder)
    return subprocess.run(
        ["go", "test", "-mod=mod", "-v", "./..."], cwd=folder, env=environment, check=False
    ).returncode


def run_java(folder: Path, environment: dict[str, str], jars: list[str]) -> int:
    sources = [*(ROOT / "kits/java").glob("*.java"), *(ROOT / "tests/kits/java").glob("*.java")]
    class_path = os.pathsep.join([str(folder), *(str(Path(jar).resolve()) for jar in jars)])
    subprocess.run(["javac", "-cp", class_path, "-d", str(folder), *map(str, sources)], check=True)
    launcher = "org.junit.platform.console.ConsoleLauncher"
    command = ["java", "-cp", class_path, launcher, "execute", "--disable-banner"]
    command += ["--select-class", "GemingaExtensionTest", "--select-class", "AbsoluteTimesTest"]
    return subprocess.run(command, cwd=folder, env=environment, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description="Try the test helpers for other languages.")
    parser.add_argument("kit", choices=("go", "java"))
    parser.add_argument("jars", nargs="*", metavar="JAR")
    flags = parser.parse_args()
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "GEMINGA_COMMAND": f"{sys.executable} -m geminga",
    }
    with tempfile.TemporaryDirectory() as directory:
        if flags.kit == "go":
            return run_go(Path(directory), environment)
        return run_java(Path(directory), environment, flags.jars)


if __name__ == "__main__":
    sys.exit(main())
