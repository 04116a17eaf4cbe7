"""What a plan costs in the driver: seconds, CPU, connections that stay, requests to the admin API, memory.

Planned in this process, as Spark's driver plans in one of its own.
"""

from __future__ import annotations

import http.client
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from geminga.pipeline.topics.options import parse_options
from geminga.pipeline.topics.planning import plan_batch
from geminga.pipeline.topics.streaming import StreamPlan
from tests.pipeline.at_size.figures import memory_mb
from tests.pipeline.at_size.rig import Rig


def run(rig: Rig, what: str, rows: int, **choice: str) -> None:
    admin = {"admin.url": rig.endpoints.web_url}
    for name, more in (("", {}), (", admin.url", admin)):
        with _measured(rig, f"{what}: batch plan{name}"):
            plan_batch(parse_options(rig.options(**choice, **more)))
    bounded = {"maxRowsPerTrigger": str(rows // 4)}
    by_bytes = {"maxBytesPerTrigger": "10000", **admin}
    for name, more in (
        ("rows", bounded),
        ("rows, admin.url", bounded | admin),
        ("bytes, admin.url", by_bytes),
    ):
        options = parse_options(rig.options(startingOffsets="earliest", **choice, **more))
        plan = StreamPlan(options)
        try:
            with _measured(rig, f"{what}: begin of a stream limited by {name}"):
                at = plan.initial()
            for number in range(2):
                with _measured(rig, f"{what}:   trigger {number}"):
                    end = plan.latest(at, limited=True)
                    plan.ranges(at, end)
                    plan.report()
                at = end
            plan.fix_target()
            while (end := plan.latest(at, limited=True)) != at:
                at = end
            with _measured(rig, f"{what}:   trigger that finds nothing"):
                plan.latest(at, limited=True)
                plan.report()
        finally:
            plan.close()


@contextmanager
def _measured(rig: Rig, what: str) -> Iterator[None]:
    requests: list[str] = []
    request = http.client.HTTPConnection.request

    def counting(self: Any, method: str, url: str, *arguments: Any, **named: Any) -> None:
        requests.append(url)
        request(self, method, url, *arguments, **named)

    files = len(os.listdir("/proc/self/fd"))
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins now
    resident_mb = memory_mb("self", "VmRSS")
    begun_s, cpu = time.perf_counter(), time.process_time()
    with patch.object(http.client.HTTPConnection, "request", counting):
        yield
    rig.figures.row(
        what,
        f"{time.perf_counter() - begun_s:6.2f} s",
        f"{time.process_time() - cpu:5.2f} CPU-s",
        f"{len(os.listdir('/proc/self/fd')) - files:+} connections",
        f"{len(requests):,} requests to the admin API",
        f"{memory_mb('self', 'VmHWM') - resident_mb:+.0f} MB",
    )
