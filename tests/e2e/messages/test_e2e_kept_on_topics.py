"""What is set for a topic and its subscriptions is shown, after a restart too; a peek leaves nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from geminga.wire import pulsar_pb2 as pb
from tests.e2e.admin_http import Admin
from tests.e2e.binary_session import BinarySession
from tests.e2e.broker_process import BrokerProcess, Endpoints
from tests.e2e.differential.cases import BODIES
from tests.e2e.messages.entries import entries, publish

pytestmark = pytest.mark.geminga_only

ROOT = "/admin/v2/persistent/public/default"
RATE = BODIES["DispatchRateImpl"]
SET = {
    "t/offloadPolicies": ("POST", BODIES["OffloadPoliciesImpl"]),
    "t/replicatorDispatchRate": ("POST", RATE),
    "t/dispatcherPauseOnAckStatePersistent": ("POST", None),
    "t/maxMessageSize": ("POST", "7"),
    "t/shadowTopics": ("PUT", '["persistent://public/default/parted"]'),
    "t/replication": ("POST", '["standalone"]'),
    "t/s/dispatchRate": ("POST", RATE),
    "t/properties": ("PUT", '{"a": "1"}'),
    "parted/properties": ("PUT", '{"b": "2"}'),
    "t/subscription/s/properties": ("PUT", '{"c": "3"}'),
    "t/subscription/s/replicatedSubscriptionStatus": ("POST", "true"),
    "t/permissions": ("POST", '["produce"]'),
    "parted/permissions": ("POST", '["consume"]'),
}
WITHOUT_EFFECT = {
    "t/offloadPolicies",
    "t/replicatorDispatchRate",
    "t/dispatcherPauseOnAckStatePersistent",
    "t/maxMessageSize",
    "t/shadowTopics",
    "t/subscription/s/replicatedSubscriptionStatus",
    "t/permissions",
    "parted/permissions",
}


def shown(admin: Admin) -> dict[str, tuple[int, str]]:
    answers = {path: admin.get(f"{ROOT}/{path}") for path in SET}
    return {path: (answer.status, answer.text) for path, answer in answers.items()}


def test_what_is_set_for_a_topic_is_shown_before_and_after_a_restart(tmp_path: Path) -> None:
    process = BrokerProcess(tmp_path / "data")
    with process:
        admin = Admin(process.endpoints.web_url)
        assert admin.put(f"{ROOT}/t").status == 204
        assert admin.put(f"{ROOT}/parted/partitions", 2).status == 204
        assert admin.put(f"{ROOT}/t/subscription/s", "earliest").status == 204
        before = shown(admin)
        warned = set()
        for path, (method, body) in SET.items():
            place = f"{ROOT}/{path}" + ("/role" if path.endswith("permissions") else "")
            answer = admin.request(method, place, raw=body and body.encode())
            assert answer.status == 204, (path, answer)
            if "has no effect" in answer.headers.get("warning", ""):
                warned.add(path)
        assert warned == WITHOUT_EFFECT
        after = shown(admin)
        assert [path for path in SET if after[path] == before[path]] == []
        assert json.loads(after["t/s/dispatchRate"][1])["dispatchThrottlingRateInMsg"] == 10
        assert json.loads(after["parted/permissions"][1]) == {"role": ["consume"]}
    with process:
        assert shown(Admin(process.endpoints.web_url)) == after


def test_a_rate_of_one_subscription_holds_for_it_alone(broker: Endpoints, topic: str) -> None:
    """Two messages in an hour: the third does not come, while the other subscription gets all."""
    path = f"{ROOT}/{topic.rpartition('/')[2]}"
    admin = Admin(broker.web_url)
    assert admin.put(path).status == 204
    slow = {"dispatchThrottlingRateInMsg": 2, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 3600}
    assert admin.post(f"{path}/slow/dispatchRate", slow).status == 204
    for name in ("slow", "quick"):
        assert admin.put(f"{path}/subscription/{name}", "earliest").status == 204
    publish(broker.binary_address, topic, entries()[:1] * 5)
    backlog = {}
    for name in ("quick", "slow"):
        with BinarySession(broker.binary_address) as session:
            session.connect()
            session.subscribe(topic, name)
            session.send(pb.CommandFlow(consumer_id=1, messagePermits=10))
            received = 0
            try:
                while received < 5:
                    session.receive(0.5)
                    received += 1
            except TimeoutError:
                pass
            backlog[name] = received
    assert backlog == {"quick": 5, "slow": 2}


def test_a_peek_makes_no_subscription_and_moves_none(broker: Endpoints, topic: str) -> None:
    path = f"{ROOT}/{topic.rpartition('/')[2]}"
    admin = Admin(broker.web_url)
    assert admin.put(path).status == 204
    assert admin.put(f"{path}/subscription/s", "earliest").status == 204
    publish(broker.binary_address, topic, entries())
    for name in ("s", "none"):
        for number in range(1, 17):
            assert admin.get(f"{path}/subscription/{name}/position/{number}").status == 200
    assert admin.get(f"{path}/subscriptions").json() == ["s"]
    assert admin.get(f"{path}/stats").json()["subscriptions"]["s"]["msgBacklog"] == 16


def test_properties_that_are_the_brokers_own_are_refused(broker: Endpoints, topic: str) -> None:
    path = f"{ROOT}/{topic.rpartition('/')[2]}"
    admin = Admin(broker.web_url)
    assert admin.put(path).status == 204
    for key in ("geminga.epoch", "#pulsar.internal.delayed.bucket_0_1"):
        assert admin.put(f"{path}/properties", {key: "1"}).status == 405
    assert admin.get(f"{path}/properties").json() == {}
    assert admin.put(f"{path}/properties", {"k": "v" * 2**20}).status in (405, 413)
