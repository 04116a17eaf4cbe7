"""Notes how far the machine holds up the run itself: what is late because of that says nothing of the broker.

Linux tells of each thread how long it ran and how long it waited for a processor. Elsewhere only the lateness
of a timer is known.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

import trio

from geminga.cli.chaos.checking.history import History, Probe
from geminga.cli.chaos.running.producing import wall_ms
from geminga.cli.chaos.running.target import Target

PAUSE_SECONDS: Final = 0.05
PROBES_MAX: Final = 100_000
BUSY_SHARE: Final = 0.85
"""With more of a processor's time than this our own loop is what messages wait for."""


class Ran(NamedTuple):
    """Of a thread, since its start."""

    ran_ms: float = 0.0
    waited_ms: float = 0.0


def ran(process: str) -> Ran:
    """Of the first thread of a process (a number), or of this one (`thread-self`)."""
    try:
        ran_ns, waited_ns, _ = Path(f"/proc/{process}/schedstat").read_text().split()
    except (OSError, ValueError):
        return Ran()
    return Ran(int(ran_ns) / 1e6, int(waited_ns) / 1e6)


async def probe_forever(target: Target, history: History) -> None:
    """Until cancelled."""
    own, pid, broker = ran("thread-self"), target.pid(), ran(str(target.pid()))
    began_s = trio.current_time()
    while len(history.probes) < PROBES_MAX:
        await trio.sleep(PAUSE_SECONDS)
        now_s = trio.current_time()
        took_ms, began_s = (now_s - began_s) * 1000, now_s
        before, own = own, ran("thread-self")
        was_pid, pid = pid, target.pid()
        broker_before, broker = broker, ran(str(pid))
        ran_ms = own.ran_ms - before.ran_ms
        client_waits_ms = own.waited_ms - before.waited_ms + (ran_ms if ran_ms > BUSY_SHARE * took_ms else 0)
        broker_waits_ms = broker.waited_ms - (broker_before.waited_ms if pid == was_pid else 0.0)
        history.probes.append(
            Probe(
                at_ms=wall_ms(),
                late_ms=round(max(0.0, took_ms - PAUSE_SECONDS * 1000), 2),
                client_waits_ms=round(client_waits_ms, 2),
                broker_waits_ms=round(max(0.0, broker_waits_ms), 2),
            )
        )
