"""Options as programs for the JVM connector give them: each works or is refused in words; where reading
begins and ends, and what is acknowledged meanwhile.
"""

from __future__ import annotations

import json
import ssl
from pathlib import Path
from typing import Any

import pytest

from geminga.pipeline.client.connection import tls_context
from geminga.pipeline.client.last_message import last_of
from geminga.pipeline.client.owning_brokers import OwningBrokers
from geminga.pipeline.errors import BadOption, DataLost, PipelineError
from geminga.pipeline.topics.options import Options, parse_options
from geminga.pipeline.topics.planning import plan_batch
from geminga.pipeline.topics.prefixed_options import OptionWithoutEffect
from geminga.pipeline.topics.publish_times import CLOCKS_APART_MS, MessageIdsByTime
from geminga.pipeline.topics.streaming import StreamPlan
from geminga.wire import pulsar_pb2 as pb
from tests.e2e.admin_http import Admin, topic_path
from tests.pipeline.conftest import Topics, triggers
from tests.pipeline.topics.test_topics import read_values

LATEST_BYTES = [8, -1, -1, -1, -1, -1, -1, -1, -1, 127, 16, -1, -1, -1, -1, -1, -1, -1, -1, 127]
EARLIEST_BYTES = [8, *[-1] * 9, 1, 16, *[-1] * 9, 1]


def options_of(**given: str) -> Options:
    return parse_options({"service.url": "pulsar://h"} | given)


@pytest.mark.parametrize("never", ["253402300799999", "9999-12-31"])
def test_the_end_of_the_year_9999_is_a_time(never: str) -> None:
    assert options_of(topic="t", endingTime=never).ending_time_ms


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("maxEntriesPerTrigger", "5", "maxRowsPerTrigger"),
        ("maxRetries", "5", "leave it out"),
        ("topic", "a,b", "the option topics"),
        ("startingTime", "yesterday", "milliseconds since 1970"),
        ("startingTime", "1764369000", "looks like seconds; .*: give 1764369000000"),
        ("endingTime", '{"t": 1764369000000000}', "looks like microseconds; .*: give 1764369000000"),
        ("endingOffsets", json.dumps({"t": EARLIEST_BYTES}), "before the earliest"),
        ("pulsar.client.authPluginClassName", "org.apache.AuthenticationAthenz", "AuthenticationBasic"),
        ("pulsar.client.useTls", "true", r"pulsar\+ssl://"),
        ("pulsar.client.socks5ProxyAddress", "h:1", "not supported: known are"),
        ("pulsar.client.tlsTrustStorePath", "/jks", "PEM files"),
        ("pulsar.reader.readCompacted", "true", "every message is read"),
        ("pulsar.reader.cryptoFailureAction", "DISCARD", "FAIL"),
        ("pulsar.reader.startMessageId", "x", "startingOffsets"),
        ("pulsar.producer.chunkingEnabled", "true", "one message"),
        ("pulsar.producer.encryptionKeys", "k", "not encrypted"),
        ("pulsar.producer.hashingScheme", "crc", "JavaStringHash"),
        ("pulsar.producer.messageRoutingMode", "CustomPartition", "partitioning"),
        ("pulsar.producer.maxPendingMessages", "many", "whole number"),
        ("pulsar.admin.whatever", "x", "known are authPluginClassName"),
        ("valueSchema", "protobuf", "avro"),
        ("minPartitions", "0", "minPartitions is '0'; expected a whole number of at least 1"),
        ("minPartitions", "1000000000", "'1000000000'; .* of at least 1 and at most 100000"),
        ("splitsPerPartition", "100001", "'100001'; expected .* at most 100000"),
        ("maxRecordsPerPartition", str(2**63), "at most 9223372036854775807"),
        ("maxRowsPerTrigger", "9" * 400, "at most 9223372036854775807"),
        ("maxRecordsPerPartition", "many", "maxRecordsPerPartition is 'many'"),
        ("includeHeaders", "yes", "includeHeaders is 'yes'; expected true or false"),
    ],
)
def test_what_is_not_possible_is_refused_with_the_reason(name: str, value: str, words: str) -> None:
    with pytest.raises(BadOption, match=words):
        options_of(**{name: value})


def test_what_only_tunes_the_java_client_is_told_apart() -> None:
    with pytest.warns(OptionWithoutEffect, match="pulsar.client.numiothreads"):
        options_of(**{"pulsar.client.numIoThreads": "4"})
    with pytest.warns(OptionWithoutEffect, match="pulsar.reader.receiverqueuesize"):
        options_of(**{"pulsar.reader.receiverQueueSize": "4"})


def test_places_and_times_exclude_each_other() -> None:
    for first, second in (("startingOffsets", "startingTime"), ("endingOffsets", "endingTime")):
        with pytest.raises(BadOption, match="exclude each other"):
            options_of(**{first: "latest", second: "5"})


@pytest.mark.parametrize("name", ["minPartitions", "maxRecordsPerPartition"])
def test_a_fixed_number_of_splits_excludes_another_bound(name: str) -> None:
    with pytest.raises(BadOption, match=f"splitsPerPartition and {name} exclude each other.*Leave one"):
        options_of(splitsPerPartition="1", **{name: "5"})
    assert options_of(splitsPerPartition="0", **{name: "5"}) == options_of(**{name: "5"})


def test_credentials_of_the_client_and_of_the_admin_api(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-file\n")
    java = "org.apache.pulsar.client.impl.auth."
    for plugin, params, expected in (
        ("AuthenticationToken", "token:abc", ("token", b"abc")),
        ("AuthenticationToken", '{"token": "abc"}', ("token", b"abc")),
        ("AuthenticationToken", f"file://{tmp_path}/token", ("token", b"from-file")),
        ("AuthenticationBasic", '{"userId": "u", "password": "p"}', ("basic", b"u:p")),
        ("AuthenticationTls", "tlsCertFile:/c.pem,tlsKeyFile:/k.pem", ("tls", None)),
    ):
        access = options_of(**{"pulsar.client.authPluginClassName": java + plugin,
                               "pulsar.client.authParams": params}).access  # fmt: skip
        assert (access.auth_method, access.auth_data) == expected
    assert (access.certificate, access.certificate_key) == ("/c.pem", "/k.pem")
    found = options_of(**{"pulsar.client.authParams": "token:a", "pulsar.admin.authParams": "token:b"})
    assert found.admin_access is not None
    assert (found.access.auth_data, found.admin_access.auth_data) == (b"a", b"b")
    with pytest.raises(BadOption, match="no token can be read"):
        options_of(**{"pulsar.client.authParams": "file:///nowhere/token"})


def test_how_far_certificates_are_trusted() -> None:
    for name, value, expected in (
        ("tlsHostnameVerificationEnable", "true", (True, ssl.CERT_REQUIRED)),
        ("tlsHostnameVerificationenable", "false", (False, ssl.CERT_REQUIRED)),  # as its README spells it
        ("tlsAllowInsecureConnection", "true", (False, ssl.CERT_NONE)),
    ):
        context = tls_context(options_of(**{f"pulsar.client.{name}": value}).access)
        assert (context.check_hostname, context.verify_mode) == expected
    for name in ("tlsTrustCertsFilePath", "tlsCertificateFilePath"):
        with pytest.raises(PipelineError, match="cannot be used"):
            tls_context(options_of(**{f"pulsar.client.{name}": "/nowhere.pem"}).access)


def test_the_java_producers_options_are_ours() -> None:
    given = {"sendTimeoutMs": "5000", "maxPendingMessages": "2000", "batchingMaxMessages": "100",
             "compressionType": "ZSTD", "producerName": "p", "messageRoutingMode": "SinglePartition",
             "hashingScheme": "Murmur3_32Hash", "blockIfQueueFull": "true"}  # fmt: skip
    found = options_of(**{f"pulsar.producer.{name}": value for name, value in given.items()})
    assert (found.send_timeout_s, found.pending_max, found.batch_rows) == (5.0, 20, 100)
    assert (found.compression, found.producer_name_prefix) == ("zstd", "p")
    assert (found.partitioning, found.hashing) == ("single", "murmur3")
    assert options_of(**{"pulsar.producer.batchingEnabled": "false"}).batch_rows == 1
    ours = options_of(**{"pulsar.producer.batchingMaxMessages": "100", "batchRows": "7"})
    assert ours.batch_rows == 7


def test_what_spark_passes_to_a_sink_of_its_own_accord_is_no_mistake() -> None:
    """`queryName("copy")` of a stream comes as an option."""
    given = {"service.url": "pulsar://b", "topic": "t", "queryName": "copy", "checkpointLocation": "c"}
    assert parse_options(given) == parse_options({"service.url": "pulsar://b", "topic": "t"})


def test_topics_of_which_nothing_is_said_have_the_default(topics: Topics, topic: str) -> None:
    names = [f"{topic}-{part}" for part in "ab"]
    for name in names:
        topics.write(name, {"value": [b"%d" % index for index in range(6)]}, batchRows="1")
    both = ",".join(names)

    def options(**given: str) -> Options:
        return parse_options({"service.url": topics.endpoints.service_url, "topics": both} | given)

    def read(**given: str) -> list[int]:
        wanted = plan_batch(options(**given))
        return [int(value) for each in wanted for value in read_values(topics, each)]

    ledger_id = last_of(options().access, names[0]).end.ledger_id
    assert read(startingOffsets=json.dumps({names[0]: f"{ledger_id}:4:0"})) == [4, 5, *range(6)]
    assert read(endingOffsets=json.dumps({names[0]: f"{ledger_id}:1:0"})) == [0, 1, *range(6)]
    assert read(endingOffsets=json.dumps({names[0]: LATEST_BYTES})) == [*range(6), *range(6)]
    assert read(startingOffsets=json.dumps({names[0]: EARLIEST_BYTES})) == [*range(6), *range(6)]
    with pytest.raises(BadOption, match="reads nothing"):
        read(startingOffsets=json.dumps({names[0]: LATEST_BYTES}))
    with pytest.raises(BadOption, match="which is not read"):
        read(startingOffsets=json.dumps({topic + "-c": "1:1"}))
    plan = StreamPlan(options(startingOffsets=json.dumps({names[0]: f"{ledger_id}:4:0", names[1]: "latest"})))
    try:
        initial = plan.initial()
        assert initial == {
            names[0]: f"{ledger_id}:4:0",
            names[1]: str(last_of(options().access, names[1]).end),
        }
        assert plan.latest(initial, limited=False)[names[1]] == initial[names[1]]
    finally:
        plan.close()


def test_an_end_without_a_batch_index_is_the_whole_entry(topics: Topics, topic: str) -> None:
    topics.write(topic, {"value": [b"%d" % index for index in range(20)]}, batchRows="10")
    ledger_id = last_of(topics.options(topic).access, topic).end.ledger_id
    message_id = list(pb.MessageIdData(ledgerId=ledger_id, entryId=0).SerializeToString())
    for end, count in ((f"{ledger_id}:0", 10), (f"{ledger_id}:0:3", 4), (message_id, 10)):
        assert len(topics.values(topic, endingOffsets=json.dumps({topic: end}))) == count


class Times:
    """A producer's clock that was set to one time after another."""

    def __init__(self, times_ms: list[int]) -> None:
        self._times_ms = iter(times_ms)

    def now_ms(self) -> int:
        return next(self._times_ms)


def test_a_stream_begins_at_a_publish_time(
    topics: Topics, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = [(1_700_000_000_000 + index * 7, index) for index in range(20)]
    monkeypatch.setattr("geminga.pipeline.writing.lane._CLOCK", Times([at_ms for at_ms, _ in times]))
    topics.write(topic, {"value": [b"%d" % number for _, number in times]}, batchRows="1")
    access = topics.options(topic).access
    begin_ms = times[12][0]
    expected = [number for at_ms, number in times if at_ms >= begin_ms]
    brokers = OwningBrokers(access)
    try:
        places = MessageIdsByTime(brokers)
        place = places.at(topic, begin_ms)
        assert place.entry_id == expected[0]
        assert places.at(topic, times[-1][0] + 1000) == last_of(access, topic).end
    finally:
        brokers.close()
    for apart_ms in (CLOCKS_APART_MS, 0):
        monkeypatch.setattr("geminga.pipeline.topics.publish_times.CLOCKS_APART_MS", apart_ms)
        for value in (str(begin_ms), json.dumps({topic: begin_ms})):
            plan = StreamPlan(topics.options(topic, startingTime=value))
            try:
                start = plan.initial()
                assert start[topic] == f"{place.ledger_id}:{place.entry_id if apart_ms == 0 else 0}:0"
                (wanted,) = plan.ranges(start, plan.latest(start, limited=False))
                assert [int(value) for value in read_values(topics, wanted)] == expected
            finally:
                plan.close()
        for value, count in (("-1", 20), ("-2", 0)):
            plan = StreamPlan(topics.options(topic, startingTime=value))
            try:
                start = plan.initial()
                found = plan.ranges(start, plan.latest(start, limited=False))
                assert sum(len(read_values(topics, wanted)) for wanted in found) == count
            finally:
                plan.close()
        bounds = {"startingTime": str(times[3][0]), "endingTime": json.dumps({topic: begin_ms})}
        assert [int(value or b"") for value in topics.values(topic, **bounds)] == [
            number for at_ms, number in times if times[3][0] <= at_ms < begin_ms
        ]


def test_subscriptions_follow_the_query(topics: Topics, admin: Admin, topic: str) -> None:
    topics.write(topic, {"value": [b"x"] * 10}, batchRows="1")
    ledger_id = last_of(topics.options(topic).access, topic).end.ledger_id

    def backlogs() -> dict[str, int]:
        stats = admin.get(f"/admin/v2/{topic_path(topic)}/stats").json()["subscriptions"]
        return {name: each["msgBacklog"] for name, each in stats.items() if each["isDurable"]}

    offsets = json.dumps({topic: f"{ledger_id}:4:0"})
    plan = StreamPlan(topics.options(topic, subscriptionPrefix="spark", startingOffsets=offsets))
    try:
        start = plan.initial()
        assert backlogs() == {f"spark-{topic}": 6}
        plan.acknowledge(plan.latest(start, limited=False))
        assert backlogs() == {f"spark-{topic}": 0}
    finally:
        plan.close()
    plan = StreamPlan(topics.options(topic, predefinedSubscription="named", subscriptionPrefix="other"))
    try:
        plan.initial()  # from the latest on
    finally:
        plan.close()
    assert backlogs() == {f"spark-{topic}": 0, "named": 0}


def test_few_rows_a_trigger_come_from_all_partitions(topics: Topics, admin: Admin, topic: str) -> None:
    admin.create_partitions(topic, 3)
    topics.write(topic, {"value": [b"%d" % index for index in range(9)], "__partition": [0, 1, 2] * 3},
                 partitioning="partition")  # fmt: skip
    plan = StreamPlan(topics.options(topic, startingOffsets="earliest", maxRowsPerTrigger="1"))
    try:
        offsets, found = plan.initial(), []
        for _ in range(9):
            end = plan.latest(offsets, limited=True)
            found.append(
                [int(value) for wanted in plan.ranges(offsets, end) for value in read_values(topics, wanted)]
            )
            offsets = end
        assert [len(each) for each in found] == [1] * 9
        assert sorted(number % 3 for (number,) in found[:3]) == [0, 1, 2]
    finally:
        plan.close()


@pytest.mark.parametrize("exact", ["true", "false"])
def test_rows_and_bytes_bound_a_trigger_together(topics: Topics, topic: str, exact: str) -> None:
    topics.write(topic, {"value": [b"x" * 1000] * 60}, batchRows="10")
    for limits, at_most in (
        ({"maxRowsPerTrigger": "7", "maxBytesPerTrigger": "15000"}, 7),
        ({"maxRowsPerTrigger": "57", "maxBytesPerTrigger": "15000"}, 20),
    ):
        limits |= {"exactRowsPerTrigger": exact}
        plan = StreamPlan(topics.options(topic, startingOffsets="earliest", **limits))
        try:
            steps = [
                sum(len(read_values(topics, wanted)) for wanted in ranges)
                for ranges in triggers(plan, plan.initial())
            ]
        finally:
            plan.close()
        assert sum(steps) == 60
        assert max(steps) == at_most
        if exact == "true":
            assert set(steps[:-1]) == {at_most}


def test_lost_messages_fail_a_batch_query_unless_told_otherwise(
    topics: Topics, admin: Admin, topic: str
) -> None:
    topics.write(topic, {"value": [b"old"] * 10}, batchRows="1")
    ledger_id = last_of(topics.options(topic).access, topic).end.ledger_id
    assert admin.put(f"/admin/v2/{topic_path(topic)}/unload").status == 204
    topics.write(topic, {"value": [b"new"]})
    assert admin.delete(f"/admin/v2/{topic_path(topic)}/truncate").status == 204
    places: list[dict[str, Any]] = [
        {"startingOffsets": json.dumps({topic: f"{ledger_id}:5:0"})},
        {"endingOffsets": json.dumps({topic: "99999999:5:0"})},
    ]
    for given in places:
        with pytest.raises((DataLost, PipelineError), match="first that is left|created again"):
            topics.values(topic, **given)
        assert topics.values(topic, **given, failOnDataLoss="false") == [b"new"]
