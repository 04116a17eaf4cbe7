"""The test helpers for other languages, tried with their real clients.

    python -m tests.kits.live go
    python -m tests.kits.live java JAR...        JUnit's console launcher and the jars of Pulsar's client
    python -m tests.kits.live node [PACKAGE]     npm's pulsar-client, or a folder with one that was built here
    python -m tests.kits.live rust               the crate pulsar
    python -m tests.kits.live KIT --running      twice, on one broker that the kit did not start

Needs `go` with pulsar-client-go in its module cache; a JDK of 17 or newer; Node.js of 18 or newer and npm;
cargo, and protoc, with which the crate is built. Each kit is one file below `kits/` that users copy; a copy
of it is compiled together with its tests in a folder of its own, and packages are installed there.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from geminga.child_broker import ChildBroker

ROOT: Final = Path(__file__).resolve().parents[2]
NODE_CLIENT: Final = "pulsar-client@1.18.0"
CRATES: Final = """\
[package]
name = "kit"
version = "0.0.0"
edition = "2021"
[dev-dependencies]
futures = "0.3"
pulsar = { version = "=6.9.1", default-features = false, features = ["tokio-runtime"] }
tokio = { version = "1", features = ["rt-multi-thread", "time", "macros"] }
"""
SETTINGS: Final = {
    "isDelayedDeliveryDeliverAtTimeStrict": "true",
    "delayedDeliveryMinIndexCountPerBucket": "20",
    "managedLedgerMaxEntriesPerLedger": "20",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "delayedDeliveryTrackerFactoryClassName": (
        "org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory"
    ),
}
"""Of a broker that runs: those that the Java and the Node tests have."""


def prepared_go(folder: Path) -> list[str]:
    for directory in (ROOT / "kits/go", ROOT / "tests/kits/go"):
        shutil.copytree(directory, folder, dirs_exist_ok=True)
    for name in ("go.mod", "go.sum"):
        shutil.copy(ROOT / "bench/go_client" / name, folder)
    return ["go", "test", "-mod=mod", "-count=1", "-v", "./..."]


def prepared_java(folder: Path, jars: Sequence[str]) -> list[str]:
    sources = [*(ROOT / "kits/java").glob("*.java"), *(ROOT / "tests/kits/java").glob("*.java")]
    class_path = os.pathsep.join([str(folder), *(str(Path(jar).resolve()) for jar in jars)])
    subprocess.run(["javac", "-cp", class_path, "-d", str(folder), *map(str, sources)], check=True)
    launcher = "org.junit.platform.console.ConsoleLauncher"
    command = ["java", "-cp", class_path, launcher, "execute", "--disable-banner"]
    return [*command, "--select-class", "GemingaExtensionTest", "--select-class", "AbsoluteTimesTest"]


def prepared_node(folder: Path, packages: Sequence[str]) -> list[str]:
    for directory in (ROOT / "kits/node", ROOT / "tests/kits/node"):
        shutil.copytree(directory, folder, dirs_exist_ok=True)
    if packages:
        modules = folder / "node_modules"
        modules.mkdir()
        (modules / "pulsar-client").symlink_to(Path(packages[0]).resolve())
    else:
        (folder / "package.json").write_text('{"private": true}')
        subprocess.run(["npm", "install", "--no-package-lock", NODE_CLIENT], cwd=folder, check=True)
    return ["node", "--test", "--test-reporter=spec", "geminga.test.mjs"]


def prepared_rust(folder: Path) -> list[str]:
    shutil.copytree(ROOT / "tests/kits/rust", folder / "tests")
    (folder / "tests/geminga").mkdir()
    shutil.copy(ROOT / "kits/rust/geminga.rs", folder / "tests/geminga/mod.rs")
    (folder / "Cargo.toml").write_text(CRATES)
    (folder / "src").mkdir()
    (folder / "src/lib.rs").touch()
    return ["cargo", "test", "--test", "kit"]


def main() -> int:
    parser = argparse.ArgumentParser(description="Try the test helpers for other languages.")
    parser.add_argument("kit", choices=("go", "java", "node", "rust"))
    parser.add_argument("packages", nargs="*", metavar="JAR or PACKAGE")
    parser.add_argument("--running", action="store_true", help="twice, on a broker that runs already")
    flags = parser.parse_args()
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "GEMINGA_COMMAND": f"{sys.executable} -m geminga",
    }
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        match flags.kit:
            case "go":
                command = prepared_go(folder)
            case "java":
                command = prepared_java(folder, flags.packages)
            case "node":
                command = prepared_node(folder, flags.packages)
            case _:
                command = prepared_rust(folder)
        if not flags.running:
            return subprocess.run(command, cwd=folder, env=environment, check=False).returncode
        with ChildBroker(settings=SETTINGS, arguments=["--clock", "virtual", "--chaos"]) as broker:
            environment |= {"GEMINGA_SERVICE_URL": broker.service_url, "GEMINGA_WEB_URL": broker.web_url}
            return max(
                subprocess.run(command, cwd=folder, env=environment, check=False).returncode for _ in range(2)
            )


if __name__ == "__main__":
    sys.exit(main())
