"""Which panels of public Pulsar dashboards have data on a real Pulsar, and which of them on Geminga.

    python -m tests.docker.public_boards BOARD.json... [--prometheus PROGRAM]

Boards are files of Grafana's JSON. Plays the workload of tests/e2e/metrics on Geminga, serves that page and
the recorded one of the real broker to a Prometheus each, and asks all queries of both. Variables stand for
everything. Prints a line for each board and the panels that are empty here only; exit code 1 if there are
any. Takes about a minute.
"""

from __future__ import annotations

import argparse
import http.server
import json
import re
import subprocess
import sys
import tempfile
import threading
import urllib.error
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.docker.boards import ask, free_port
from tests.e2e.broker_process import BrokerProcess
from tests.e2e.metrics.recorder import recorded, scrape
from tests.e2e.metrics.workload import SETTINGS, Workload
from tests.e2e.waiting import eventually

JOBS = ("broker", "bookie", "proxy", "zookeeper")
"""The names by which public boards select; one page has all that a standalone shows."""


def queries_of(panel: dict[str, Any]) -> list[str]:
    return [plain(target["expr"]) for target in panel.get("targets", []) if target.get("expr")]


def plain(query: str) -> str:
    """Without variables: a label may be anything, a range is a minute."""
    query = re.sub(r'!?=~?\s*"[^"]*\$[^"]*"', '=~".*"', query)
    query = re.sub(r"\[\[?[^\]]*(?:interval|range|\$)[^\]]*\]\]?", "[1m]", query)
    return re.sub(r"\$\{?\w+\}?", "1m", query)


def panels_of(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for panel in [*board.get("panels", []), *board.get("rows", [])]:
        if "panels" in panel:
            yield from panels_of({"panels": panel["panels"]})
        if panel.get("targets"):
            yield panel


def own_page(directory: Path) -> str:
    with BrokerProcess(directory / "data", settings=SETTINGS) as broker:
        url = broker.endpoints.web_url
        return Workload(broker.endpoints.service_url, url, lambda: scrape(url)).play().loaded


@contextmanager
def prometheus_of(page: str, program: str, directory: Path) -> Iterator[str]:
    """The address of a Prometheus that has scraped this page a few times."""
    body = page.encode()

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        directory.mkdir()
        config, port = directory / "prometheus.yml", free_port()
        target = f"static_configs: [{{targets: ['127.0.0.1:{server.server_port}']}}]"
        jobs = "".join(f"  - {{job_name: {job}, honor_labels: true, {target}}}\n" for job in JOBS)
        config.write_text(f"global: {{scrape_interval: 1s}}\nscrape_configs:\n{jobs}")
        words = [program, f"--config.file={config}", f"--storage.tsdb.path={directory}/tsdb"]
        words += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"]
        with subprocess.Popen(words) as process:
            try:
                address = f"http://127.0.0.1:{port}"
                # Two samples, so that a rate has a value.
                eventually(lambda: count(address, "count_over_time(up[1m]) > 4") == len(JOBS), 60)
                yield address
            finally:
                process.terminate()
                server.shutdown()


def count(prometheus: str, query: str) -> int:
    try:
        return ask(prometheus, query)
    # Not up yet, or a query that this Prometheus does not parse: it is empty on both.
    except (urllib.error.URLError, ConnectionError):
        return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("boards", nargs="+", type=Path)
    parser.add_argument("--prometheus", default="prometheus")
    options = parser.parse_args()
    missing = []
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        root = Path(name)
        pages = {"real": recorded().loaded, "ours": own_page(root)}
        asked = {
            side: stack.enter_context(prometheus_of(page, options.prometheus, root / side))
            for side, page in pages.items()
        }
        for path in options.boards:
            shown = dict.fromkeys(("panels", *asked), 0)
            for panel in panels_of(json.loads(path.read_text())):
                found = {side: any(count(at, one) for one in queries_of(panel)) for side, at in asked.items()}
                shown["panels"] += 1
                for side, has_data in found.items():
                    shown[side] += has_data
                if found["real"] and not found["ours"]:
                    missing.append(f"{path.name}: {panel.get('title')}")
            print(path.parent.name, path.name, shown)
    print(f"{len(missing)} panels are empty here only", *missing, sep="\n  ")
    sys.exit(bool(missing))


if __name__ == "__main__":
    main()
