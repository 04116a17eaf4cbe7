"""Settings changed at run time hold at once, for topics that are loaded too, and after a restart."""

from __future__ import annotations

from pathlib import Path

import pulsar
import pytest

from tests.e2e.admin_http import Admin
from tests.e2e.broker_process import BrokerProcess

pytestmark = pytest.mark.geminga_only

CONFIGURATION = "/admin/v2/brokers/configuration"
TOPIC = "/admin/v2/persistent/public/default/t"


def message_rate(admin: Admin) -> int:
    return int(admin.get(f"{TOPIC}/dispatchRate?applied=true").json()["dispatchThrottlingRateInMsg"])


def test_a_changed_setting_holds_at_once_and_after_a_restart(tmp_path: Path) -> None:
    process = BrokerProcess(tmp_path / "data")
    with process:
        admin = Admin(process.endpoints.web_url)
        assert admin.put(TOPIC).status == 204
        assert message_rate(admin) == 0
        answer = admin.post(f"{CONFIGURATION}/dispatchThrottlingRatePerTopicInMsg/17")
        assert (answer.status, "warning" in answer.headers) == (200, False)
        assert message_rate(admin) == 17
        assert admin.get(f"{CONFIGURATION}/runtime").json()["dispatchThrottlingRatePerTopicInMsg"] == "17"
        assert admin.post(f"{CONFIGURATION}/allowAutoTopicCreation/false").status == 200
        assert admin.get("/lookup/v2/topic/persistent/public/default/nobody-made-it").status == 404
        answer = admin.post(f"{CONFIGURATION}/loadBalancerSheddingEnabled/true")
        assert "has no effect" in answer.headers["warning"]
    with process:
        admin = Admin(process.endpoints.web_url)
        assert admin.get(f"{CONFIGURATION}/values").json() == {
            "dispatchThrottlingRatePerTopicInMsg": "17",
            "allowAutoTopicCreation": "false",
            "loadBalancerSheddingEnabled": "true",
        }
        assert message_rate(admin) == 17
        assert admin.delete(f"{CONFIGURATION}/dispatchThrottlingRatePerTopicInMsg").status == 200
        assert message_rate(admin) == 0


def test_what_may_not_be_changed_is_refused(admin: Admin) -> None:
    for key, value in (
        ("clusterName", "x"),
        ("nonsense", "1"),
        ("dispatchThrottlingRatePerTopicInMsg", "many"),
        ("dispatchThrottlingRatePerTopicInMsg", "9" * 40),
        ("subscriptionTypesEnabled", "Exclusive,Nonsense"),
    ):
        assert admin.post(f"{CONFIGURATION}/{key}/{value}").status == 412, (key, value)
    assert admin.delete(f"{CONFIGURATION}/clusterName").status == 412
    assert admin.get(f"{CONFIGURATION}/values").json() == {}


def test_a_namespace_decides_which_topics_are_made_by_themselves(admin: Admin, client: pulsar.Client) -> None:
    root = "/admin/v2/namespaces/public/by-themselves"
    assert admin.put(root).status == 204
    lookup = "/lookup/v2/topic/persistent/public/by-themselves"
    assert admin.post(f"{root}/autoTopicCreation", {"allowAutoTopicCreation": False}).status == 204
    assert admin.get(f"{lookup}/t").status == 404
    override = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3}
    assert admin.post(f"{root}/autoTopicCreation", override).status == 204
    client.create_producer("persistent://public/by-themselves/t")
    assert admin.get("/admin/v2/persistent/public/by-themselves/t/partitions").json()["partitions"] == 3
    for wrong in ({"topicType": "square"}, {"topicType": "partitioned", "defaultNumPartitions": 0}):
        answer = admin.post(f"{root}/autoTopicCreation", {"allowAutoTopicCreation": True, **wrong})
        assert answer.status == 412, answer


def test_a_namespace_has_no_more_topics_than_it_may(admin: Admin) -> None:
    root = "/admin/v2/namespaces/public/few-topics"
    assert admin.put(root).status == 204
    assert admin.post(f"{root}/maxTopicsPerNamespace", 3).status == 204
    topics = "/admin/v2/persistent/public/few-topics"
    assert admin.put(f"{topics}/two/partitions", 2).status == 204
    assert admin.put(f"{topics}/one").status == 204
    for answer in (admin.put(f"{topics}/another"), admin.put(f"{topics}/more/partitions", 1)):
        assert (answer.status, answer.json()["reason"]) == (
            412,
            "Exceed maximum number of topics in namespace.",
        )
    assert admin.put(f"{topics}/two-partition-0").status in (204, 409)
