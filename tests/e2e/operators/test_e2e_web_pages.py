"""A web page of another site, in a browser on the broker's machine, may not administer the broker."""

from __future__ import annotations

import http.client
from collections.abc import Iterator

import pytest

from tests.e2e.admin_http import Admin
from tests.e2e.broker_process import BrokerProcess, Endpoints

pytestmark = pytest.mark.geminga_only
TOPICS = "/admin/v2/persistent/public/default"


@pytest.fixture(scope="module")
def endpoints(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoints]:
    """A broker on loopback that goes by another name besides."""
    settings = {"gemingaWebServiceHostNames": "console.example"}
    with BrokerProcess(tmp_path_factory.mktemp("pages") / "data", settings=settings) as process:
        yield process.endpoints


def put(endpoints: Endpoints, name: str, headers: dict[str, str]) -> tuple[int, bytes]:
    address = endpoints.web_url.removeprefix("http://")
    connection = http.client.HTTPConnection(address, timeout=10)
    connection.request("PUT", f"{TOPICS}/{name}", headers={"Host": address, **headers})
    answer = connection.getresponse()
    status, body = answer.status, answer.read()
    connection.close()
    return status, body


def test_changes_that_a_page_of_another_site_sends_are_refused(endpoints: Endpoints) -> None:
    refused = {
        "rebound": {"Host": "evil.com:8080", "Origin": "http://evil.com:8080"},
        "rebound-without-origin": {"Host": "evil.com:8080"},
        "forged": {"Origin": "http://evil.com", "Content-Type": "text/plain"},
        "another-port": {"Origin": "http://localhost:3000"},
        "same-site": {"Sec-Fetch-Site": "same-site"},
    }
    served = {
        "own-page": {"Origin": endpoints.web_url},
        "own-name": {"Host": "console.example", "Origin": "https://console.example"},
        "no-page": {},
    }
    found = {name: put(endpoints, name, headers) for name, headers in (refused | served).items()}
    assert {name: status for name, (status, _) in found.items()} == {
        **dict.fromkeys(refused, 403),
        **dict.fromkeys(served, 204),
    }
    assert b"gemingaWebServiceHostNames" in found["rebound"][1]
    topics = Admin(endpoints.web_url).get(TOPICS).json()
    assert sorted(topics) == sorted(f"persistent://public/default/{name}" for name in served)
