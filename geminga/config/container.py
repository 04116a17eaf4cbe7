"""What is different in the image: its own defaults, and `PULSAR_MEM`, the JVM options of Pulsar's image.

Imported only there.

In a container the published ports are the border, so the broker listens on all addresses. Tests that start
containers wait for lines of Pulsar's log; the broker writes them too, once they are true.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from geminga.config.file import Property
from geminga.config.memory_budget import BUDGET_MB_MAX, BUDGET_MB_MIN
from geminga.units import size_bytes

MEMORY_VARIABLE = "PULSAR_MEM"
BEYOND_BUDGET_MB = 64
"""What the process may take beyond its budget: a container with the JVM's limits has room for both."""
READY_LINES = (
    "messaging service is ready",
    "Created namespace public/default",
    "Successfully updated the policies on namespace public/default",
)
"""What libraries for tests in containers have waited for, one after the other."""
NO_FUNCTIONS = (
    "Pulsar Functions are not served: a test that waits for the functions worker waits in vain. "
    "-nfw (--no-functions-worker) says that none is wanted"
)

_SIZE = re.compile(r"-(?:Xmx|XX:MaxDirectMemorySize=)(\d{1,12}[kKmMgGtT]?)(?=\s|$)")


class ContainerDefaults(NamedTuple):
    """What holds unless a file, the environment or a flag says otherwise."""

    properties: list[Property]
    notices: list[str]


def container_defaults(environment: Mapping[str, str]) -> ContainerDefaults:
    """For a broker that runs in the image."""
    properties = [Property("bindAddress", "0.0.0.0", "the image")]
    notices = []
    options = environment.get(MEMORY_VARIABLE, "").strip()
    if options:
        budget_mb = jvm_budget_mb(options)
        if budget_mb is None:
            notices.append(f"{MEMORY_VARIABLE} names no -Xmx; it has no effect")
        else:
            properties.append(Property("memoryMb", str(budget_mb), f"environment variable {MEMORY_VARIABLE}"))
            notices.append(
                f"{MEMORY_VARIABLE}: heap and direct memory stand for a memory budget of {budget_mb} MB, "
                "unless memoryMb or --memory names another"
            )
    return ContainerDefaults(properties, notices)


def jvm_budget_mb(options: str) -> int | None:
    """The budget for what a JVM with these options may take; None if they do not limit its heap.

    Of an option that is repeated the last one counts, as in a JVM.
    """
    found = {match[0].rstrip("0123456789kKmMgGtT"): match for match in _SIZE.finditer(options)}
    if "-Xmx" not in found:
        return None
    total_bytes = sum(size_bytes(match[1]) for match in found.values())
    return min(max((total_bytes >> 20) - BEYOND_BUDGET_MB, BUDGET_MB_MIN), BUDGET_MB_MAX)
