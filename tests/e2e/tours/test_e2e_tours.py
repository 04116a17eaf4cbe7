"""The published admin clients of Java and Go: every request of their recorded tours is answered as by Pulsar.

Neither Java nor Go is needed: the very requests are sent again, in their order, and the status, the fields
and the values of every answer are compared. `differences.tsv` lists what differs on purpose: the client, its
call (`*` stands for anything), the reason. A row that explains nothing any more fails too.
"""

from __future__ import annotations

import fnmatch
import http.client
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

from tests.e2e.broker_process import BrokerProcess, Endpoints
from tests.e2e.tours.compare import exchange_difference
from tests.e2e.tours.proxy import answer_of, looked_at
from tests.e2e.tours.recorder import LARGE, recorded
from tests.e2e.tours.tour import CLIENTS, filled, plain_exchange, set_stage

DIFFERENCES = Path(__file__).with_name("differences.tsv")
CALLS_MIN = 150


class Explained(NamedTuple):
    client: str
    call: str
    reason: str

    def explains(self, client: str, call: str) -> bool:
        return fnmatch.fnmatchcase(client, self.client) and fnmatch.fnmatchcase(call, self.call)


class Difference(NamedTuple):
    client: str
    call: str
    asked: str
    what: str


def explained() -> list[Explained]:
    lines = DIFFERENCES.read_text().splitlines()
    return [Explained(*line.split("\t")) for line in lines if line and not line.startswith("#")]


def differences(client: str, endpoints: Endpoints) -> Iterator[Difference]:
    stage = set_stage(client, endpoints.service_url, endpoints.web_url)
    address = urlsplit(endpoints.web_url)
    connection = http.client.HTTPConnection(address.hostname or "localhost", address.port or 80)
    for name, call in recorded(client).items():
        for theirs in call.exchanges:
            body = None if theirs.body is None else filled(theirs.body, stage)
            connection.request(theirs.method, filled(theirs.path, stage), body, theirs.headers)
            response = connection.getresponse()
            headers, raw = looked_at(response.getheaders()), response.read()
            ours = theirs._replace(status=response.status, answer_headers=headers, answer=answer_of(raw))
            if theirs.answer == LARGE and ours.answer:
                ours = ours._replace(answer=LARGE)
            ours = plain_exchange(ours, stage, endpoints.web_url)
            if what := exchange_difference(name, theirs, ours):
                yield Difference(client, name, f"{theirs.method} {theirs.path}", what)
    connection.close()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Difference]:
    """Each on a broker of its own: tours list tenants, clusters and settings of the whole broker."""
    root = tmp_path_factory.mktemp("tours")

    def replay(client: str) -> list[Difference]:
        with BrokerProcess(root / client) as process:
            return list(differences(client, process.endpoints))

    with ThreadPoolExecutor(len(CLIENTS)) as pool:
        return [one for found in pool.map(replay, CLIENTS) for one in found]


@pytest.mark.geminga_only
@pytest.mark.parametrize("client", CLIENTS)
def test_every_request_of_the_published_admin_client_is_answered_alike_or_is_explained(
    found: list[Difference], client: str
) -> None:
    reasons = explained()
    assert [
        one
        for one in found
        if one.client == client and not any(row.explains(client, one.call) for row in reasons)
    ] == []


@pytest.mark.geminga_only
def test_every_reason_explains_something(found: list[Difference]) -> None:
    unneeded = [row for row in explained() if not any(row.explains(one.client, one.call) for one in found)]
    assert unneeded == []


@pytest.mark.parametrize("client", CLIENTS)
def test_a_tour_has_calls_of_every_kind_that_end_well_and_badly(client: str) -> None:
    outcomes = [call.outcome for call in recorded(client).values()]
    assert len(outcomes) >= CALLS_MIN
    assert sum("result" in outcome for outcome in outcomes) >= CALLS_MIN * 2 // 3
    assert {outcome["status"] for outcome in outcomes if "status" in outcome} >= {404, 409, 412}
