"""Pulsar's own delayed-delivery trackers, measured in the same way as ours, where Java is present.

    python bench/delayed/java_trackers/java_rows.py --jars DIR                  the jars of a Pulsar broker
    python bench/delayed/java_trackers/java_rows.py --jars DIR --fetch CACHE    4.2.4 too, fetched into CACHE

One JVM for each row (SerialGC, warmed up twice); prints JSON lines. Rates are CPU time of the one thread that
adds and drains. Memory is what lives on the heap after garbage collection plus what is allocated outside of
it: `heap_bytes + direct_bytes`; `reported_bytes` is what the tracker says of itself. Buckets' snapshots are
serialised and go to a file; no bookie is involved.

For another bench: `java_rows(jars)` returns the rows.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
NEWER = "4.2.4"
"""Its time-bucket tracker is what the published figures are about; 4.0 has the heap again."""
NEWER_ARTIFACTS = ("pulsar-broker", "pulsar-broker-common", "pulsar-common", "managed-ledger")
JAVA_OPTIONS = (
    "-XX:+UseSerialGC",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.misc=ALL-UNNAMED",
    "-Dio.netty.tryReflectionSetAccessible=true",
    # A pool keeps what the warm-up has used; without one, what is allocated is what the trackers hold.
    "-Dpulsar.allocator.pooled=false",
    f"-Dlog4j.configurationFile={HERE / 'log4j2.properties'}",
)
HEAP_GIB_MAX = 4
"""As much of the machine's memory as is free, but for a quarter, may be the heap, up to this."""
FETCH_SECONDS_MAX = 300
ROW_SECONDS_MAX = 600
"""A row that takes longer is given up."""


class Workload(NamedTuple):
    tracker: str
    """memory, or bucket"""
    delays: str
    """fixed; random over the same span; mix2: two fixed delays in turn; alt: every other message; jitter:
    fixed and 0 to 5 s
    """
    per_ms: int
    tick_ms: int
    buckets_max: int = -1


WORKLOADS = (
    Workload("memory", "fixed", 1, 1 << 10),
    Workload("memory", "fixed", 4, 1 << 10),
    Workload("memory", "fixed", 8, 1 << 10),
    Workload("memory", "fixed", 8, 1 << 15),
    Workload("memory", "mix2", 8, 1 << 10),
    Workload("memory", "alt", 8, 1 << 10),
    Workload("memory", "jitter", 8, 1 << 10),
    Workload("memory", "random", 8, 1 << 10),
    Workload("bucket", "fixed", 8, 1 << 10),
    Workload("bucket", "random", 8, 1 << 10),
    Workload("bucket", "fixed", 8, 1 << 10, buckets_max=50),
    Workload("bucket", "random", 8, 1 << 10, buckets_max=50),
)


@dataclass(frozen=True, slots=True)
class Row:
    """`delayed` of `messages` were tracked, `drained` of these came back. Rates of adding count all
    messages. `written_bytes` is what all snapshots had, `stored_bytes` those that were there at the end.
    """

    version: str
    tracker: str
    delays: str
    per_ms: int
    tick_ms: int
    messages: int
    delayed: int
    drained: int
    add_millions_per_s: float
    drain_millions_per_s: float
    heap_bytes: int
    direct_bytes: int
    reported_bytes: int
    stored_bytes: int
    written_bytes: int
    buckets: int
    buckets_max: int
    longest_seal_ms: float
    recover_cpu_ms: float

    @property
    def workload(self) -> Workload:
        kind = "bucket" if "Bucket" in self.tracker else "memory"
        return Workload(kind, self.delays, self.per_ms, self.tick_ms, self.buckets_max)

    @property
    def memory_bytes(self) -> int:
        return self.heap_bytes + self.direct_bytes

    @property
    def bytes_per_message(self) -> float:
        return self.memory_bytes / max(1, self.delayed)

    @property
    def stored_bytes_per_message(self) -> float:
        return self.stored_bytes / max(1, self.delayed)


class GivenUp(NamedTuple):
    """A row that did not come."""

    version: str
    workload: Workload
    why: str


def is_java_here() -> bool:
    return shutil.which("java") is not None and shutil.which("javac") is not None


def version_of(jars: Path) -> str | None:
    """Of the broker whose jars these are; None if there is none."""
    found = sorted(jars.glob("pulsar-broker-[0-9]*.jar"))
    return found[0].stem.removeprefix("pulsar-broker-") if found else None


def java_rows(
    jars: Path,
    workloads: Sequence[Workload] = WORKLOADS,
    messages: int = 10_000_000,
    newer: Path | None = None,
) -> list[Row]:
    """`jars` holds a broker with everything that it needs; `newer`, if given, other versions of some of
    these, to be taken instead. No rows if Java or the broker's jar is missing, and none for what was given
    up. CalledProcessError.
    """
    found = each_java_row(jars, workloads, messages, newer)
    return [row for row in found if isinstance(row, Row)]


def each_java_row(
    jars: Path,
    workloads: Sequence[Workload],
    messages: int,
    newer: Path | None = None,
    seconds_max: float = ROW_SECONDS_MAX,
) -> Iterator[Row | GivenUp]:
    """In the order of the workloads. A row that takes longer than `seconds_max`, or whose JVM fails, is
    given up, and the next one comes.
    """
    version = version_of(newer or jars)
    if not is_java_here() or version is None:
        return
    with tempfile.TemporaryDirectory(prefix="bench-") as classes:
        paths = [f"{newer}/*"] if newer is not None else []
        class_path = ":".join([classes, *paths, f"{jars}/*"])
        source = str(HERE / "TrackerBench.java")
        subprocess.run(
            ["javac", "-nowarn", "-XDignore.symbol.file", "-d", classes, "-cp", class_path, source],
            check=True,
            stderr=subprocess.DEVNULL,
        )
        for workload in workloads:
            yield _row(class_path, workload, messages, version, seconds_max)


def _row(
    class_path: str, workload: Workload, messages: int, version: str, seconds_max: float
) -> Row | GivenUp:
    tracker, delays, per_ms, tick_ms, buckets_max = workload
    arguments = [tracker, delays, *map(str, (per_ms, tick_ms, messages, buckets_max))]
    command = ["java", *JAVA_OPTIONS, f"-Xmx{heap_mib()}m", "-cp", class_path, "TrackerBench", *arguments]
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=seconds_max)
    except subprocess.TimeoutExpired:
        return GivenUp(version, workload, f"not done after {seconds_max:.0f} s")
    except subprocess.CalledProcessError as error:
        said = [line.strip() for line in (error.stdout + error.stderr).splitlines() if line.strip()]
        thrown = [line for line in said if "Exception" in line or "Error" in line] or said
        return GivenUp(version, workload, thrown[0][:200] if thrown else f"exit code {error.returncode}")
    found = json.loads(done.stdout.splitlines()[-1])
    found["version"], found["tracker"] = version, found.pop("class")
    return Row(**{field.name: found[field.name] for field in fields(Row)})


def heap_mib() -> int:
    """Three quarters of the memory that is free now, `HEAP_GIB_MAX` at most."""
    free_mib = 4 * 1024
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            free_mib = int(line.split()[1]) // 1024
    return min(HEAP_GIB_MAX * 1024, free_mib * 3 // 4)


def fetch(cache: Path) -> Path | None:
    """The newer broker's own jars, from Maven Central; None, with a word about it, if that is not to be."""
    directory = cache / NEWER
    if version_of(directory) == NEWER:
        return directory
    if shutil.which("mvn") is None:
        print("Maven is not installed: no rows of Pulsar", NEWER, file=sys.stderr)
        return None
    directory.mkdir(parents=True, exist_ok=True)
    # The broker comes last: it says that all are there.
    for name in reversed(NEWER_ARTIFACTS):
        goal = ["dependency:copy", f"-Dartifact=org.apache.pulsar:{name}:{NEWER}"]
        command = ["mvn", "-q", "-B", *goal, f"-DoutputDirectory={directory.resolve()}"]
        try:
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=FETCH_SECONDS_MAX)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            print(f"{name} {NEWER} cannot be fetched: no rows of it", file=sys.stderr)
            return None
    return directory


def fetched(cache: Path | None) -> tuple[Path, ...]:
    """`fetch`, if it was asked for: one directory or none."""
    directory = fetch(cache) if cache is not None else None
    return () if directory is None else (directory,)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--jars", type=Path, help="the jars of a Pulsar broker and all it needs")
    parser.add_argument(
        "--fetch", type=Path, metavar="CACHE", help=f"have {NEWER} too, kept in this directory"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_options(parser)
    parser.add_argument("--messages", type=int, default=10_000_000, help="a multiple of 1,000")
    parser.add_argument(
        "--seconds", type=float, default=ROW_SECONDS_MAX, help="what takes longer is given up"
    )
    parser.add_argument("--only", choices=("memory", "bucket"))
    options = parser.parse_args()
    if options.jars is None or version_of(options.jars) is None or not is_java_here():
        sys.exit("needs java, javac, and --jars with a directory that has pulsar-broker's jar")
    chosen = [workload for workload in WORKLOADS if options.only in (None, workload.tracker)]
    for newer in (None, *fetched(options.fetch)):
        for row in each_java_row(options.jars, chosen, options.messages, newer, options.seconds):
            if isinstance(row, GivenUp):
                print(f"{row.version} {row.workload}: {row.why}", file=sys.stderr, flush=True)
                continue
            print(json.dumps(asdict(row) | {"bytes_per_message": row.bytes_per_message}), flush=True)


if __name__ == "__main__":
    main()
