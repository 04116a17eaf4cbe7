"""Nonsense over the admin API is refused with a 4xx; a publisher beside it notices nothing."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.e2e.binary_session import BinarySession
from tests.e2e.broker_process import Endpoints

pytestmark = pytest.mark.geminga_only

MIB = 1024 * 1024
NAMESPACE = "/admin/v2/namespaces/public/default"
TOPIC = "/admin/v2/persistent/public/default/bad"
DEEP = b"[" * (MIB // 2) + b"]" * (MIB // 2)
DEEP_OBJECT = (b'{"a":' * (MIB // 6))[: MIB - 10]
BODIES = {
    "a list a million deep": DEEP,
    "an object without an end": DEEP_OBJECT,
    "NaN": b"NaN",
    "NaN in an object": b'{"limitSize": NaN, "policy": "producer_exception"}',
    "a number of 5000 digits": b"9" * 5000,
    "no UTF-8": b'"\xff\xfe"',
    "a lone surrogate": b'"\\ud800"',
    "NUL": b"\x00",
}
SETTERS = (
    ("POST", f"{NAMESPACE}/retention"),
    ("POST", f"{NAMESPACE}/backlogQuota"),
    ("POST", f"{NAMESPACE}/messageTTL"),
    ("POST", f"{NAMESPACE}/offloadPolicies"),
    ("POST", f"{NAMESPACE}/permissions/role"),
    ("PUT", f"{NAMESPACE}/properties"),
    ("PUT", "/admin/v2/clusters/bad"),
    ("PUT", "/admin/v2/resourcegroups/bad"),
    ("POST", "/admin/v2/resource-quotas"),
    ("PUT", "/admin/v2/tenants/bad"),
    ("POST", "/admin/v2/clusters/standalone/namespaceIsolationPolicies/p"),
    ("PUT", f"{TOPIC}/partitions"),
    ("POST", f"{TOPIC}/dispatchRate"),
)
TARGETS = (
    "/admin/v2/namespaces/public/..",
    "/admin/v2/namespaces/../../etc/passwd",
    "/admin/v2/namespaces/%2e%2e/%2e%2e",
    "/admin/v2/namespaces/public/%00",
    "/admin/v2/namespaces/public/%ff",
    "/admin/v2/namespaces/public/%zz",
    "/admin/v2/namespaces/public//retention",
    "/admin/v2/resource-quotas/public/default/0xffffffff_0x00000000",
    "/admin/v2/resource-quotas/public/default/%00",
    "/admin/v2/clusters/..",
    "/admin/v2/clusters/%00/peers",
    "/admin/v2/bookies/racks-info/%00",
    "/admin/v2/brokers/..",
    "/admin/v2/tenants/%2e%2e",
    "/admin/v2/tenants/" + "t" * 7000,
    "/" + "a/" * 40,
    "/geminga/unserved/nothing",
    "/admin/v2/namespaces/public/default/0x00000000_0x40000000/topicHashPositions/x",
)


@pytest.fixture
def publisher(broker: Endpoints) -> Iterator[BinarySession]:
    with BinarySession(broker.binary_address) as session:
        session.connect()
        session.create_producer("persistent://public/default/beside-bad-requests")
        yield session


def ask(broker: Endpoints, method: str, target: str, body: bytes = b"") -> int:
    """The status of a request whose target is sent as it stands."""
    host, _, port = broker.web_url.removeprefix("http://").partition(":")
    head = (
        f"{method} {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), timeout=30) as sock:
        sock.sendall(head.encode() + body)
        with sock.makefile("rb") as answer:
            return int(answer.readline().split()[1])


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_body_that_is_none_is_refused(broker: Endpoints, publisher: BinarySession, body: bytes) -> None:
    for number, (method, path) in enumerate(SETTERS):
        status = ask(broker, method, path, body)
        assert 400 <= status < 500, (method, path, status)
        publisher.publish(b"x", sequence_id=number)


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("retention", "retentionSizeInMB"),
        ("backlogQuota", "limitSize"),
        ("dispatchRate", "dispatchThrottlingRateInByte"),
        ("offloadPolicies", "managedLedgerOffloadThresholdInBytes"),
    ],
)
def test_a_number_beyond_its_type_is_refused(broker: Endpoints, path: str, key: str) -> None:
    for digits in (20, 500, 5000):
        body = b'{"%s": %s, "policy": "producer_exception"}' % (key.encode(), b"9" * digits)
        assert ask(broker, "POST", f"{NAMESPACE}/{path}", body) == 400


def test_a_path_that_is_none_is_refused(broker: Endpoints, publisher: BinarySession) -> None:
    for number, target in enumerate(TARGETS):
        status = ask(broker, "GET", target)
        assert 400 <= status < 500 or status == 501, (target, status)
        publisher.publish(b"x", sequence_id=number)


@pytest.mark.parametrize("method", ["PATCH", "TRACE", "CONNECT", "BREW"])
def test_a_method_that_no_route_has_is_refused(broker: Endpoints, method: str) -> None:
    assert ask(broker, method, NAMESPACE) == 405
