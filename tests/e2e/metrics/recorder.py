"""The real broker's page of metrics under the workload of `workload.py`: recorded, and read.

    python -m tests.e2e.metrics.recorder pulsar://localhost:6650 http://localhost:8080

asks a real Pulsar 4.0.x with `workload.SETTINGS` in its configuration (CONTRIBUTING.md, "Recording what
Pulsar does"), half a minute long, and writes `pulsar_empty.txt.gz` and `pulsar_loaded.txt.gz` beside this
file. With
`--to DIRECTORY` the broker may be any, also a Geminga.
"""

from __future__ import annotations

import argparse
import gzip
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from tests.e2e.metrics.workload import SETTINGS, Pages, Workload
from tests.recordings.real_broker import checked_version

HERE = Path(__file__).parent


def scrape(web_url: str) -> str:
    with urllib.request.urlopen(f"{web_url}/metrics/") as response:
        page: str = response.read().decode()
        return page


def recorded() -> Pages:
    return Pages(*(gzip.decompress(path.read_bytes()).decode() for path in _paths(HERE)))


def _paths(directory: Path) -> list[Path]:
    return [directory / f"pulsar_{name}.txt.gz" for name in ("empty", "loaded")]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("service_url")
    parser.add_argument("web_url")
    parser.add_argument("--to", type=Path)
    asked = parser.parse_args(arguments)
    if asked.to is None:
        print("Pulsar", checked_version(asked.service_url, asked.web_url, SETTINGS))
    pages = Workload(asked.service_url, asked.web_url, lambda: scrape(asked.web_url)).play()
    for path, page in zip(_paths(asked.to or HERE), (pages.empty, pages.loaded), strict=True):
        path.write_bytes(gzip.compress(page.encode(), 9, mtime=0))


if __name__ == "__main__":
    main()
