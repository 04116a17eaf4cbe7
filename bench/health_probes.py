"""What health probes cost: the broker's CPU while a client asks for its health a hundred times a second.

    python bench/health_probes.py [--per-second 100] [--seconds 10]

Half of the requests come on connections of their own, as most probes do, half on one that stays. The figures
are of the broker's process, beside the same time without a probe.
"""

from __future__ import annotations

import argparse
import http.client
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.e2e.broker_process import BrokerProcess

PATH = "/admin/v2/brokers/health"


def cpu_s(pid: int) -> float:
    """By the scheduler's clock, all threads: ticks of 10 ms are too coarse for requests of some 0.1 ms."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def ask(connection: http.client.HTTPConnection) -> None:
    connection.request("GET", PATH)
    response = connection.getresponse()
    assert (response.status, response.read()) == (200, b"ok")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--per-second", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=10)
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, BrokerProcess(Path(name) / "data") as broker:
        url = urlsplit(broker.endpoints.web_url)
        pid = broker.pid
        for kind in ("no probe", "connection kept", "connection each"):
            kept = http.client.HTTPConnection(url.hostname or "", url.port)
            before_s, started_s, asked = cpu_s(pid), time.monotonic(), 0
            while (passed_s := time.monotonic() - started_s) < flags.seconds:
                if kind != "no probe" and asked < passed_s * flags.per_second:
                    asked += 1
                    if kind == "connection kept":
                        ask(kept)
                    else:
                        own = http.client.HTTPConnection(url.hostname or "", url.port)
                        ask(own)
                        own.close()
                else:
                    time.sleep(0.002)
            used_s = cpu_s(pid) - before_s
            share = used_s / (time.monotonic() - started_s)
            each = f", {used_s / asked * 1e6:.0f} us each" if asked else ""
            print(f"{kind:16} {asked:6} requests  {used_s:.2f} s of CPU, {share:.1%} of a core{each}")
            kept.close()


if __name__ == "__main__":
    main()
