"""The wires that end in the admin API, which reads the configuration itself: an answer is a leaf."""

from __future__ import annotations

import json
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from geminga.admin.api.table import router_for
from geminga.admin.http.router import Request, Router
from geminga.broker.connection.connection import Connections
from geminga.broker.operator.view import Process, View
from geminga.broker.topic.producer import Producer
from geminga.config.config import Config
from geminga.config.memory_budget import memory_parts
from geminga.errors import PeerError
from geminga.limits import MIB
from geminga.server.memory_report import MemoryMeter
from geminga.server.room_settings import default_policies
from geminga.storage.rocksdb import BlockCache
from tests.broker.dispatch_rig import FakeOutbox
from tests.broker.topics_rig import TopicsRig, join, open_topics, publish, subscription_of, topic_of
from tests.server.settings.rows import LOCAL_HOST, Leaves, Row

BINARY_PORT, WEB_PORT = 6666, 8888
DEFAULT_CLUSTER = Config().cluster_name
TOPICS = "/admin/v2/persistent/public/default"
DAMAGE = "/geminga/delayed/persistent/public/default/t/subscription/s/lose-bucket"

ADMIN_ROWS = [
    Row("chaosEnabled", "true", {"damage": "NotFound"}),
    Row(
        "maxNumPartitionsPerPartitionedTopic",
        "2",
        {"three partitions": "BadPartitionCount", "two grow to three": "BadPartitionCount"},
    ),
    Row("exposeTopicLevelMetricsInPrometheus", "false", {"metric labels": ["cluster", "namespace"]}),
    Row(
        "splitTopicAndPartitionLabelInPrometheus",
        "true",
        {"metric labels": ["cluster", "namespace", "partition", "subscription", "topic"]},
    ),
    Row("exposeConsumerLevelMetricsInPrometheus", "true", {"metric levels": ["consumer", "ledger"]}),
    Row("exposeProducerLevelMetricsInPrometheus", "true", {"metric levels": ["ledger", "producer"]}),
    Row("exposeManagedCursorMetricsInPrometheus", "true", {"metric levels": ["cursor", "ledger"]}),
    Row("exposeManagedLedgerMetricsInPrometheus", "false", {"metric levels": []}),
    Row("gemingaMetricsSeriesMax", "0", {"metric labels": ["cluster", "namespace"]}),
    Row(
        "clusterName",
        "pulsar-1",
        {"clusters": ["pulsar-1"], "default cluster": "NotFound", "metric clusters": ["pulsar-1"]},
    ),
    Row(
        "advertisedAddress",
        "broker.example",
        {
            "leader": f"http://broker.example:{WEB_PORT}",
            "lookup": f"pulsar://broker.example:{BINARY_PORT}",
            "default cluster": f"pulsar://broker.example:{BINARY_PORT}",
        },
    ),
]


async def admin_leaves(config: Config) -> Leaves:
    """What the admin API answers on a broker with a topic `t` and a subscription `s`."""
    async with open_topics() as rig:
        await subscription_of(rig)
        await publish(rig, 1)
        await join(rig)
        producer = Producer(2, "stays", FakeOutbox(), message_bytes_max=MIB)  # type: ignore[arg-type]
        await (await topic_of(rig)).add_producer(producer, None)
        router = _router(rig, config)
        # Before there are partitions, as these have metrics of their own.
        metrics = await _ask(router, "GET", "/metrics")
        await _ask(router, "PUT", f"{TOPICS}/two/partitions", 2)
        cluster = await _ask(router, "GET", f"/admin/v2/clusters/{DEFAULT_CLUSTER}")
        return {
            **_metric_leaves(metrics),
            "three partitions": await _ask(router, "PUT", f"{TOPICS}/three/partitions", 3),
            "two grow to three": await _ask(router, "POST", f"{TOPICS}/two/partitions", 3),
            "damage": await _ask(router, "POST", DAMAGE),
            "leader": (await _ask(router, "GET", "/admin/v2/brokers/leaderBroker"))["serviceUrl"],
            "lookup": (await _ask(router, "GET", "/lookup/v2/topic/persistent/public/default/t"))[
                "brokerUrl"
            ],
            "clusters": await _ask(router, "GET", "/admin/v2/clusters"),
            "default cluster": cluster if isinstance(cluster, str) else cluster["brokerServiceUrl"],
        }


def _router(rig: TopicsRig, config: Config) -> Router:
    rooms, parts = rig.rooms, memory_parts(config)
    meter = MemoryMeter(parts, rig.bookie, rooms, BlockCache(MIB), (), rig.topics)
    connections = Connections(rig.topics, rooms, service_url=lambda sock: "", generation=1)
    return router_for(
        View(
            rooms,
            rig.topics,
            connections,
            config,
            BINARY_PORT,
            WEB_PORT,
            Process(meter, meter.in_slices, None, None, None, int),
            default_policies,
        )
    )  # type: ignore[arg-type]


async def _ask(router: Router, method: str, path: str, body: object = None) -> Any:
    """The JSON or the text of the answer, or the name of the error that it is."""
    request = Request(method, path, b"" if body is None else json.dumps(body).encode(), LOCAL_HOST)
    try:
        answer = await router(request)
    except PeerError as error:
        return type(error).__name__
    found = answer.body
    if answer.parts is not None:
        found = b"".join([part async for part in answer.parts])
    return json.loads(found) if answer.content_type == "application/json" else found.decode()


def _metric_leaves(page: str) -> Leaves:
    samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    # Those of the single consumer or producer are levels of their own.
    of_topics = [
        sample.labels
        for sample in samples
        if "namespace" in sample.labels
        and not sample.labels.keys() & {"consumer_id", "producer_id", "quantile", "cursor_name"}
    ]
    return {
        "metric levels": sorted(
            level
            for level, name in (
                ("consumer", "pulsar_consumer_available_permits"),
                ("producer", "pulsar_producer_msg_rate_in"),
                ("cursor", "pulsar_ml_cursor_persistLedgerSucceed"),
                ("ledger", "pulsar_ml_AddEntryMessagesRate"),
            )
            if any(sample.name == name for sample in samples)
        ),
        "metric labels": sorted({label for labels in of_topics for label in labels}),
        "metric clusters": sorted({s.labels["cluster"] for s in samples if "cluster" in s.labels}),
    }
