"""Policies over REST: every step of the recording answered as Pulsar 4.0.7 did, but for what is listed here.

Each case runs in a namespace of its own; `policy_recording.py` has the cases and how they were recorded.
"""

from __future__ import annotations

import pytest

from geminga.wire import pulsar_pb2 as pb
from tests.e2e.admin_http import Admin
from tests.e2e.binary_session import BinarySession
from tests.e2e.broker_process import BrokerProcess, Endpoints
from tests.e2e.operators.policy_recording import Player, Step, cases

CASES = cases()
GLOBAL = "public/default/global-policies"
SHOWN_IN_FULL = (
    # `applied=true` shows what holds; Pulsar leaves namespace and broker out of these.
    "publishRate",
    "deduplicationSnapshotInterval",
    "maxConsumersPerSubscription",
    "maxSubscriptionsPerTopic",
    "subscriptionTypesEnabled",
)


def is_as_recorded(name: str, want: Step, got: Step) -> bool:
    """Whether the answer is Pulsar's, or differs on purpose."""
    path, _, query = want.path[2:].partition("?")
    reason = want.answer.get("reason", "") if isinstance(want.answer, dict) else ""
    if want.status == 500:
        return got.status == 400 and "reason" in got.answer  # an exception of its own that it did not expect
    if path in SHOWN_IN_FULL and (query or path == "subscriptionTypesEnabled") and want.method == "GET":
        return got.status in (200, want.status) and (want.answer in ("", []) or got.answer == want.answer)
    if name == "a namespace that is not there":
        return got.status == 404 and got.answer == {"reason": "Namespace does not exist"}
    same_answer = (
        want.answer in (None, "") if want.status >= 400 and not reason else got.answer == want.answer
    )
    return got.status == want.status and same_answer


@pytest.mark.parametrize("name", CASES)
def test_the_recording(admin: Admin, name: str) -> None:
    steps = CASES[name]
    for number, (want, got) in enumerate(zip(steps, Player(admin).play(steps), strict=True)):
        assert is_as_recorded(name, want, got), f"step {number}: want {want}, got {got}"


@pytest.mark.geminga_only
def test_what_holds_is_shown_for_every_policy(admin: Admin, topic: str) -> None:
    namespace, path = "/admin/v2/namespaces/public/applied", "/admin/v2/persistent/public/applied/t"
    assert admin.put(namespace).status == 204
    assert admin.put(path).status == 204
    assert admin.get(f"{path}/maxSubscriptionsPerTopic?applied=true").json() == 0
    assert admin.post(f"{namespace}/maxSubscriptionsPerTopic", 5).status == 204
    assert admin.get(f"{path}/maxSubscriptionsPerTopic?applied=true").json() == 5
    assert admin.post(f"{path}/maxSubscriptionsPerTopic", 7).status == 204
    assert admin.get(f"{path}/maxSubscriptionsPerTopic?applied=true").json() == 7
    assert admin.post(f"{namespace}/subscriptionTypesEnabled", ["Shared", "Shared"]).status == 204
    assert admin.get(f"{path}/subscriptionTypesEnabled?applied=true").json() == ["Shared"]


def has_second_producer(broker: Endpoints, topic: str) -> bool:
    """Whether the topic takes one beside its first."""
    with BinarySession(broker.binary_address) as first, BinarySession(broker.binary_address) as second:
        first.connect()
        first.create_producer(topic)
        second.connect()
        second.send(pb.CommandProducer(topic=topic, producer_id=1, request_id=1))
        return isinstance(second.receive().command, pb.CommandProducerSuccess)


@pytest.mark.geminga_only
def test_a_global_policy_holds_behind_the_topics_own(admin: Admin, broker: Endpoints) -> None:
    """As on the real broker: with `maxProducers` 1 for all clusters a second producer is refused, with 2 for
    the topic itself it is not, and without those again.
    """
    topic, path = f"persistent://{GLOBAL}", f"/admin/v2/persistent/{GLOBAL}"
    assert admin.put(path).status == 204
    assert admin.post(f"{path}/maxProducers?isGlobal=true", 1).status == 204
    assert not has_second_producer(broker, topic)
    assert admin.post(f"{path}/maxProducers", 2).status == 204
    assert has_second_producer(broker, topic)
    assert admin.delete(f"{path}/maxProducers").status == 204
    assert not has_second_producer(broker, topic)
    assert admin.put(f"{path}/unload").status == 204
    assert not has_second_producer(broker, topic)
    assert admin.delete(f"{path}?force=true").status == 204
    assert admin.put(path).status == 204
    assert admin.get(f"{path}/maxProducers?isGlobal=true").body == b""


def test_policies_survive_kill_9(tmp_path_factory: pytest.TempPathFactory) -> None:
    with BrokerProcess(tmp_path_factory.mktemp("policies") / "data") as process:
        admin = Admin(process.endpoints.web_url)
        path = "/admin/v2/persistent/public/default/kept"
        retention = {"retentionTimeInMinutes": 10, "retentionSizeInMB": 500}
        assert admin.put(path).status == 204
        assert admin.post(f"{path}/retention", retention).status == 204
        assert admin.post("/admin/v2/namespaces/public/default/messageTTL", 33).status == 204
        process.kill()
        process.start()
        assert admin.get(f"{path}/retention").json() == retention
        assert admin.get(f"{path}/messageTTL?applied=true").json() == 33
        assert admin.get("/admin/v2/namespaces/public/default").json()["message_ttl_in_seconds"] == 33
