"""The published admin clients, led through a few hundred calls each: their programs, and what they ask.

The programs are `tests/oracle/AdminTour.java` and `tests/oracle/admin_tour_go`. What differs between two runs
is written as a placeholder: `{ledger}`, the ledger of the entries that the tour looks at, and `{broker}`, the
broker's address.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from tests.e2e.admin_http import Admin
from tests.e2e.messages.entries import entries, publish
from tests.e2e.tours.proxy import Exchange, RecordingProxy

ORACLE: Final = Path(__file__).resolve().parents[2] / "oracle"
JARS: Final = Path(
    os.environ.get("REFERENCE_PULSAR_JARS", Path.home() / ".cache" / "reference-pulsar" / "4.0.7")
)
CLIENTS: Final = ("java", "go")
LINE: Final = "TOUR "
"""How a line of the programs begins that tells a call's outcome; clients print others."""


class Call(NamedTuple):
    outcome: dict[str, Any]
    """`result`, or `exception` with `status` and `reason`, as the client's program shows it."""
    exchanges: list[Exchange]


class Stage(NamedTuple):
    """What a tour finds on the broker: made by `set_stage`."""

    tenant: str
    topic: str
    ledger_id: int
    broker: str
    """host:port, as the broker names itself."""


def set_stage(client: str, service_url: str, web_url: str) -> Stage:
    """A topic with entries of every shape and the subscription `all`; the tenant is for the tour to make."""
    admin, address = Admin(web_url), urlsplit(service_url)
    topic = f"persistent://public/default/entries-{client}"
    path = "/admin/v2/" + topic.replace("://", "/")
    for asked in (path, f"{path}/subscription/all"):
        answer = admin.put(asked, None if asked == path else "earliest")
        assert answer.status == 204, answer
    ledger_id = publish((address.hostname or "localhost", address.port or 6650), topic, entries())
    return Stage(f"tour-{client}", topic, ledger_id, admin.get("/admin/v2/brokers").json()[0])


def java(web_url: str, stage: Stage) -> list[str]:
    program = str(ORACLE / "AdminTour.java")
    return ["java", "-Dlog4j2.level=OFF", "-cp", f"{JARS}/*", program, *_arguments(web_url, stage)]


def go(web_url: str, stage: Stage) -> list[str]:
    return ["go", "run", "-C", str(ORACLE / "admin_tour_go"), ".", *_arguments(web_url, stage)]


def _arguments(web_url: str, stage: Stage) -> list[str]:
    return [web_url, stage.tenant, stage.topic, str(stage.ledger_id), stage.broker]


PROGRAMS: Final[dict[str, Callable[[str, Stage], list[str]]]] = {"java": java, "go": go}


def lead(client: str, service_url: str, web_url: str, *, settling_s: float = 0.0) -> dict[str, Call]:
    """The whole tour on a broker that has not seen it: each call with its outcome and requests, in order."""
    stage = set_stage(client, service_url, web_url)
    outcomes: dict[str, dict[str, Any]] = {}
    with RecordingProxy(web_url, settling_s=settling_s) as proxy:
        command = PROGRAMS[client](proxy.web_url, stage)
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        for line in done.stdout.splitlines():
            if line.startswith(LINE):
                outcome = plain(json.loads(line.removeprefix(LINE)), stage, proxy.web_url)
                outcomes[outcome.pop("call")] = outcome
        assert outcomes.keys() == proxy.exchanges.keys() - {""}, outcomes.keys() ^ proxy.exchanges.keys()
        return {
            name: Call(
                outcome, [plain_exchange(one, stage, web_url) for one in in_order(proxy.exchanges[name])]
            )
            for name, outcome in outcomes.items()
        }


def in_order(exchanges: list[Exchange]) -> list[Exchange]:
    """Requests that the client sends at once come in any order."""
    is_reading = all(one.method == "GET" for one in exchanges)
    return sorted(exchanges, key=lambda one: one.path) if is_reading else exchanges


def plain_exchange(exchange: Exchange, stage: Stage, web_url: str) -> Exchange:
    return Exchange(*plain(list(exchange), stage, web_url))


def plain(found: Any, stage: Stage, web_url: str) -> Any:
    """With placeholders."""
    if isinstance(found, dict):
        return {
            plain(key, stage, web_url): "{ledger}"
            if key == "ledgerId" and value == stage.ledger_id
            else plain(value, stage, web_url)
            for key, value in found.items()
        }
    if isinstance(found, list):
        return [plain(item, stage, web_url) for item in found]
    if not isinstance(found, str):
        return found
    for address in (stage.broker, web_url.removeprefix("http://")):
        found = found.replace(address, "{broker}")
    ledger = rf"(^|/ledger/|\"ledgerId\" ?: ?|^\"?)\b{stage.ledger_id}\b(?=[:/,}}])"
    return re.sub(ledger, r"\1{ledger}", found)


def filled(text: str, stage: Stage) -> str:
    """What is asked of another broker."""
    return text.replace("{ledger}", str(stage.ledger_id)).replace("{broker}", stage.broker)
