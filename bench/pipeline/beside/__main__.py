"""Rows per CPU-second of values, beside a plain client, Spark's source for Kafka and an older commit.

    python -m bench.pipeline.beside
    python -m bench.pipeline.beside --before ../before --kafka-jars JARS --rows 200000 --rounds 5 --json FILE

Bytes, AVRO and JSON, read and written: the same rows of five fields (as bytes: 100 of them), in topics of one
partition. The sides:

    spark     this project's source and sink under Spark, all columns of the value
    arrow     `read_topic` and the writer of a task, without Spark
    client    a loop over the official Python client with its schemas
    kafka     Spark's source and sink for Kafka, with from_avro, from_json, to_avro and to_json
    before    the first two by the checkout that --before names, with the packages of its .venv

Every side is a process of its own that stays, and they take turns in each round; the figures are medians of
the rounds behind the warm ones. CPU is that of the whole process tree: the driver, its JVM and the Python
workers, not the brokers. What is read and what was written is counted and summed once.

Kafka comes from published jars: two commands of Maven copy them, with versions by choice
(-Dspark.version, -Dkafka.version):

    mvn -q -f bench/pipeline/beside/spark-jars.xml dependency:copy-dependencies -DoutputDirectory=JARS/spark
    mvn -q -f bench/pipeline/beside/broker-jars.xml dependency:copy-dependencies -DoutputDirectory=JARS/broker
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bench.pipeline.beside.kafka_process import NoKafka, kafka, source_jars
from bench.pipeline.beside.one_side import Job, Settings
from bench.pipeline.beside.rows import FORMATS, READ, WRITE, expected
from tests.e2e.broker_process import BrokerProcess

CHECKOUT = Path(__file__).resolve().parents[3]
SPARK, ARROW, CLIENT, KAFKA = "spark", "arrow", "client", "kafka"
JARS = "KAFKA_JARS"


class Side:
    """A process that reads and writes when it is told to."""

    def __init__(self, name: str, kind: str, settings: Settings, log: Path, *, python: str) -> None:
        self.name, self.kind, self._log = name, kind, log
        paths = dict.fromkeys([settings.geminga, str(CHECKOUT)])
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [python, "-P", "-m", "bench.pipeline.beside.one_side", kind, json.dumps(settings._asdict())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=log.parent,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                text=True,
            )

    def does(self, job: Job) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(job._asdict()) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            end = self._log.read_text(errors="replace")[-3000:]
            raise SystemExit(f"{self.name} ended at {job}: {end}")
        return json.loads(line)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Case(NamedTuple):
    shape: str
    direction: str


Rates = dict[tuple[str, Case], list[float]]
CASES = [Case(shape, direction) for direction in (READ, WRITE) for shape in FORMATS]


class Turns:
    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._topics = 0
        self.found: Rates = {}

    def fill(self, sides: list[Side]) -> None:
        """The topics that are read: of each broker one of each format, written by a side that can."""
        kinds = [each.kind for each in sides]
        on_pulsar = [kind for kind in (ARROW, SPARK, CLIENT) if kind in kinds]
        for kind in [*on_pulsar[:1], *([KAFKA] if KAFKA in kinds else [])]:
            for shape in FORMATS:
                sides[kinds.index(kind)].does(Job(WRITE, shape, _read_topic(shape)))

    def check(self, side: Side, job: Job) -> None:
        found = tuple(side.does(job._replace(counts=True)))
        if found != expected(job.shape, self._rows):
            raise SystemExit(f"{side.name} found {found} in {job}, and not {expected(job.shape, self._rows)}")

    def take(self, side: Side, case: Case, *, checks: bool) -> float:
        """In thousands of rows per CPU-second."""
        topic = _read_topic(case.shape)
        if case.direction == WRITE:
            self._topics += 1
            topic = f"written-{side.name}-{case.shape}-{self._topics}".lower()
        job = Job(case.direction, case.shape, topic)
        took = side.does(job)
        if checks:
            self.check(side, job)
        return float(self._rows / took["cpu"] / 1000)


def _read_topic(shape: str) -> str:
    return f"read-{shape}".lower()


def main() -> None:
    arguments = _arguments()
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sides = _sides(arguments, directory, stack)
        turns = Turns(arguments.rows)
        turns.fill(sides)
        for turn in range(arguments.warm + arguments.rounds):
            for case in (each for each in CASES if each.shape in arguments.formats):
                for side in sides:
                    rate = turns.take(side, case, checks=turn == 0)
                    if turn >= arguments.warm:
                        turns.found.setdefault((side.name, case), []).append(rate)
            print(f"round {turn + 1} of {arguments.warm + arguments.rounds}", file=sys.stderr, flush=True)
    _show(arguments, [side.name for side in sides], turns.found)
    if arguments.json is not None:
        figures = [
            {"side": name, **case._asdict(), "k_rows_per_cpu_s": rates}
            for (name, case), rates in turns.found.items()
        ]
        settings = {"rows": arguments.rows, "times": arguments.times}
        arguments.json.write_text(json.dumps({**settings, "figures": figures}, indent=1) + "\n")


def _sides(arguments: argparse.Namespace, directory: Path, stack: contextlib.ExitStack) -> list[Side]:
    settings = {"brokerDeleteInactiveTopicsEnabled": "false"}
    broker = stack.enter_context(BrokerProcess(directory / "data", settings=settings))
    here = Settings(arguments.rows, arguments.times, broker.endpoints.service_url, str(CHECKOUT))
    wanted: list[tuple[str, str, Settings, str]] = []
    for kind in arguments.sides:
        if kind == KAFKA:
            if arguments.kafka_jars is None:
                print(f"without Kafka: neither --kafka-jars nor {JARS} is given", file=sys.stderr)
                continue
            jars = arguments.kafka_jars.resolve()
            try:
                address = stack.enter_context(kafka(jars / "broker", directory / "kafka"))
                own = here._replace(kafka=address, kafka_jars=source_jars(jars / "spark"))
            except NoKafka as error:
                raise SystemExit(f"--kafka-jars: {error}") from None
            wanted.append((kind, kind, own, sys.executable))
            continue
        wanted.append((kind, kind, here, sys.executable))
        if arguments.before is not None and kind in (SPARK, ARROW):
            older = arguments.before.resolve()
            own = here._replace(geminga=str(older))
            wanted.append((f"{kind} before", kind, own, str(older / ".venv/bin/python")))
    return list(_started(wanted, directory, stack))


def _started(
    wanted: list[tuple[str, str, Settings, str]], directory: Path, stack: contextlib.ExitStack
) -> Iterator[Side]:
    for name, kind, settings, python in wanted:
        log = directory / f"{name.replace(' ', '-')}.log"
        side = Side(name, kind, settings, log, python=python)
        stack.callback(side.close)
        yield side


def _show(
    arguments: argparse.Namespace, names: list[str], found: dict[tuple[str, Case], list[float]]
) -> None:
    cases = [case for case in CASES if case.shape in arguments.formats]
    kind = ", with a time" if arguments.times else ""
    print(f"k rows per CPU-second, medians of {arguments.rounds} rounds, {arguments.rows:,} rows{kind}")
    heads = [f"{case.direction} {case.shape}" for case in cases]
    print(f"{'':24}" + "".join(f"{head:>12}" for head in heads))
    middle = {key: statistics.median(rates) for key, rates in found.items()}
    for name in names:
        print(f"{name:24}" + "".join(f"{_figure(middle[name, case]):>12}" for case in cases))
        if f"{name} before" in names:
            ratios = [middle[name, case] / middle[f"{name} before", case] for case in cases]
            of_it = [f"{ratio:.1f}x" for ratio in ratios]
            print(f"{f'  {name} / before':24}" + "".join(f"{each:>12}" for each in of_it))
    for other in (CLIENT, KAFKA):
        if other in names and SPARK in names:
            of_it = [f"{middle[SPARK, case] / middle[other, case]:.1f}x" for case in cases]
            print(f"{f'  {SPARK} / {other}':24}" + "".join(f"{each:>12}" for each in of_it))


def _figure(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.pipeline.beside",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    jars = os.environ.get(JARS)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5, help="those that are measured")
    parser.add_argument("--warm", type=int, default=2, help="those before them, which compile")
    parser.add_argument("--before", type=Path, help="another checkout, with a .venv of its own")
    parser.add_argument("--kafka-jars", type=Path, default=jars and Path(jars), help=f"default: ${JARS}")
    parser.add_argument("--times", action="store_true", help="one of the five fields is a timestamp")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    sides = [SPARK, ARROW, CLIENT, KAFKA]
    parser.add_argument("--sides", nargs="+", choices=sides, default=sides)
    parser.add_argument("--json", type=Path, help="a file for all figures")
    return parser.parse_args()


if __name__ == "__main__":
    main()
