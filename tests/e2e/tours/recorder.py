"""The outcomes and the requests of the two tours on the real broker: read, and recorded anew.

    python -m tests.e2e.tours.recorder pulsar://localhost:6650 http://localhost:8080 java|go

asks a real Pulsar 4.0.x that has just been started (CONTRIBUTING.md, "Recording what Pulsar does"). It takes
Java or Go and their published clients.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.e2e.differential.play import BULK
from tests.e2e.differential.recorder import SETTINGS
from tests.e2e.tours.proxy import Exchange
from tests.e2e.tours.tour import Call, lead
from tests.recordings.real_broker import checked_version
from tests.recordings.recording import Recorded, Recording

LARGE = "large"
"""Stands for an answer of which only whether there is one is kept."""
SETTLING_S = 0.15


def recording(client: str) -> Recording:
    return Recording(Path(__file__).with_name(f"{client}.json"), SETTINGS)


def recorded(client: str) -> dict[str, Call]:
    return {
        name: Call(outcome, [Exchange(*one) for one in exchanges])
        for name, (outcome, *exchanges) in recording(client).read().cases.items()
    }


def without_bulk(call: Call) -> Call:
    """Without answers that are too large for a file of the repository."""
    if not any(BULK.search(one.path) for one in call.exchanges):
        return call
    outcome = {key: LARGE if key == "result" else value for key, value in call.outcome.items()}
    return Call(outcome, [one._replace(answer=LARGE) for one in call.exchanges])


def record(client: str, service_url: str, web_url: str) -> None:
    """Raises UnfitBroker, and leaves the file as it is, if the broker is no real one."""
    kept_in = recording(client)
    version = checked_version(service_url, web_url, kept_in.settings)
    calls = lead(client, service_url, web_url, settling_s=SETTLING_S)
    rows = {
        name: [kept.outcome, *kept.exchanges]
        for name, kept in zip(calls, map(without_bulk, calls.values()), strict=True)
    }
    kept_in.write(Recorded(version, kept_in.settings, rows))


def main() -> None:
    service_url, web_url, client = sys.argv[1:]
    record(client, service_url, web_url)


if __name__ == "__main__":
    main()
