"""The step `everything` of the exactness command: broker, executors, workers and drivers are killed, topics
are unloaded, tasks run twice, and a topic is copied exactly once all the same.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from geminga.pipeline.spark import INSTALLED
from tests.e2e.admin_http import topic_path
from tests.e2e.broker_process import BrokerProcess, Endpoints
from tests.pipeline.exactness.killing import below, executors, python_workers
from tests.pipeline.exactness.write import ROOT, SOURCE, Copying, done, wait_for
from tests.pipeline.spark.two_hosts import two_hosts

MICRO_BATCHES = 40
SLOW_EVERY = 8
"""A micro-batch of so many has a slow task, beside which a second attempt runs."""
PARTITIONS = 2
NO_WEB_URL = "http://127.0.0.1:1"


def everything(copying: Copying, process: BrokerProcess, run: int) -> None:
    """After each micro-batch that is done, something fails. Each row is there once in the end."""
    sink = copying.sink("everything", run, PARTITIONS)
    for number in range(0, MICRO_BATCHES, SLOW_EVERY):
        copying.crash(number, "slow")
    source = random.Random(run)
    counts: Counter[str] = Counter()
    with two_hosts(copying.directory) as (master, settings):
        driver = _Driver(copying, sink, master, settings)
        faults = {
            "brokers killed": lambda: (process.kill(), process.start()),
            "executors killed": lambda: _kill(executors, source),
            "workers killed": lambda: _kill(python_workers, source),
            "drivers killed": driver.kill,
            "unloads": lambda: _unload(copying, sink),
        }
        waiting: list[str] = []
        try:
            while not driver.has_ended():
                before = driver.micro_batches()
                wait_for(
                    lambda before=before: driver.micro_batches() > before or driver.has_ended(),
                    f"no micro-batch after {before}, with {dict(counts)}; see {driver.log}",
                )
                if driver.has_ended():
                    break
                waiting = waiting or source.sample(sorted(faults), len(faults))
                name = waiting.pop()
                act: Callable[[], object] = faults[name]
                counts[name] += act() is not False
        finally:
            driver.end()
    copying.check(sink)
    second = len(list(copying.crashes.glob("attempt-*-1")))
    assert set(counts) == set(faults), f"only {dict(counts)}: more --rows take longer"
    assert second, "no task was attempted twice"
    told = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    done("everything", copying, f"{told}; {second} tasks attempted twice; {driver.starts} drivers")


class _Driver:
    """A process with the query, which is started again until it has come to the end."""

    def __init__(self, copying: Copying, sink: str, master: str, settings: dict[str, str]) -> None:
        self.starts = 0
        self._commits = copying.checkpoint(sink) / "commits"
        self.log = copying.directory / "driver.log"
        given = (copying.service_url, copying.rows, str(copying.directory), sink, master, settings)
        self._command = [sys.executable, "-m", __name__, json.dumps(given)]
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        self.starts += 1
        with self.log.open("ab") as log:
            return subprocess.Popen(self._command, cwd=ROOT, stdout=log, stderr=log)

    def has_ended(self) -> bool:
        code = self._process.poll()
        assert code in (None, 0), self.log.read_text(errors="replace")[-2000:]
        return code == 0

    def micro_batches(self) -> int:
        """How many are done, those of earlier drivers included."""
        if not self._commits.is_dir():
            return 0
        return sum(path.name.isdigit() for path in self._commits.iterdir())

    def kill(self) -> None:
        self.end()
        self._process = self._start()

    def end(self) -> None:
        for pid in [self._process.pid, *below(self._process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()


def _kill(victims: Callable[[int], list[int]], source: random.Random) -> bool:
    """One of ours; whether there was one."""
    found = victims(os.getpid())
    if not found:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(source.choice(found), signal.SIGKILL)
        return True
    return False


def _unload(copying: Copying, sink: str) -> None:
    for topic in (SOURCE, sink):
        for number in range(PARTITIONS):
            answer = copying.admin.put(f"/admin/v2/{topic_path(f'{topic}-partition-{number}')}/unload")
            assert answer.status == 204, answer


def main() -> None:
    """The driver: `_Driver` starts it."""
    from tests.pipeline.exactness.exactness import session

    parser = argparse.ArgumentParser()
    parser.add_argument("given")
    service_url, rows, directory, sink, master, settings = json.loads(parser.parse_args().given)
    copying = Copying(Endpoints(service_url, NO_WEB_URL, True), rows, Path(directory))
    with session(master, INSTALLED, **settings) as spark:
        copying.finish(spark, sink, batches=MICRO_BATCHES)


if __name__ == "__main__":
    main()
