"""Records: what is written is read back, by older and newer versions too; damage is told with its place."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from geminga.errors import CorruptData
from geminga.metadata import records
from geminga.metadata.keys import key_of
from geminga.metadata.records import (
    ClockRecord,
    CursorRecord,
    DocumentRecord,
    InstanceRecord,
    LedgerIdsRecord,
    LedgerInfo,
    LedgerRecord,
    ManagedLedgerRecord,
    NamespaceRecord,
    PartitionedTopicRecord,
    Record,
    Start,
    StartsRecord,
    TenantRecord,
    TopicPoliciesRecord,
    decode,
    encode,
)
from geminga.names import NamespaceName, TopicName

EXAMPLES: list[tuple[Record, bytes]] = [
    (
        InstanceRecord(
            format_version=1, instance_id="f00d", cluster="standalone", clock="real", created_ms=7
        ),
        b'{"record":"instance","format_version":1,"instance_id":"f00d","cluster":"standalone",'
        b'"clock":"real","created_ms":7,"format":1}',
    ),
    (
        DocumentRecord(value={"rack": "/r1"}),
        b'{"record":"document","value":{"rack":"/r1"},"format":1}',
    ),
    (
        ClockRecord(offset_ms=86_400_000, reached_ms=1_800_000_000_000, moving_to_ms=1_800_000_000_000),
        b'{"record":"clock","offset_ms":86400000,"reached_ms":1800000000000,'
        b'"moving_to_ms":1800000000000,"format":1}',
    ),
    (
        StartsRecord(starts=[Start("00f00d00f00d00f0", 7)]),
        b'{"record":"starts","starts":[{"id":"00f00d00f00d00f0","changes":7}],"format":1}',
    ),
    (LedgerIdsRecord(next_id=101), b'{"record":"ledger-ids","next_id":101,"format":1}'),
    (
        TenantRecord(admin_roles=["a"], allowed_clusters=["standalone"]),
        b'{"record":"tenant","admin_roles":["a"],"allowed_clusters":["standalone"],"format":1}',
    ),
    (
        NamespaceRecord(created_ms=7, policies={"retention_policies": {"retentionSizeInMB": 1}, "x": None}),
        b'{"record":"namespace","created_ms":7,"bundles":4,'
        b'"policies":{"retention_policies":{"retentionSizeInMB":1},"x":null},"format":1}',
    ),
    (
        PartitionedTopicRecord(partitions=3, properties={"k": "é"}, created_ms=7),
        '{"record":"partitioned-topic","partitions":3,"properties":{"k":"é"},"created_ms":7,"format":1}'.encode(),
    ),
    (
        TopicPoliciesRecord(policies={"message_ttl_s": 10}),
        b'{"record":"topic-policies","policies":{"message_ttl_s":10},"global_policies":{},"format":1}',
    ),
    (
        ManagedLedgerRecord(
            ledgers=[
                LedgerInfo(ledger_id=5, entries=10, size_bytes=100, closed_ms=8),
                LedgerInfo(ledger_id=9),
            ],
            terminated=(9, 3),
            properties={"a": "b"},
            created_ms=7,
        ),
        b'{"record":"managed-ledger","ledgers":['
        b'{"ledger_id":5,"entries":10,"size_bytes":100,"closed_ms":8},'
        b'{"ledger_id":9,"entries":0,"size_bytes":0,"closed_ms":0}],'
        b'"terminated":[9,3],"properties":{"a":"b"},"created_ms":7,"holds_delayed":false,"format":1}',
    ),
    (
        CursorRecord(mark_delete=(5, -1), cursor_ledger_id=6, properties={"p": 2**62}, created_ms=7),
        b'{"record":"cursor","mark_delete":[5,-1],"cursor_ledger_id":6,'
        b'"properties":{"p":4611686018427387904},"subscription_properties":{},"created_ms":7,"format":1}',
    ),
    (
        LedgerRecord(topic="t/n/persistent/x", purpose="bucket", created_ms=7, state="deleting"),
        b'{"record":"ledger","topic":"t/n/persistent/x","purpose":"bucket","created_ms":7,'
        b'"state":"deleting","format":1}',
    ),
]


@pytest.mark.parametrize(("record", "stored"), EXAMPLES, ids=lambda value: type(value).__name__)
def test_the_format_stays(record: Record, stored: bytes) -> None:
    assert encode(record) == stored
    assert decode(type(record), stored, "/x") == record


def test_unknown_fields_are_passed_over_and_absent_ones_filled() -> None:
    newer = b'{"record":"cursor","format":1,"mark_delete":[1,2],"added_later":{"a":[1]}}'
    assert decode(CursorRecord, newer, "/x") == CursorRecord(mark_delete=(1, 2))


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\x00",
        b"{}",
        b'{"record":"cursor","format":1}',
        b'{"record":"ledger-ids","format":1,"next_id":101}',
        b'{"record":"cursor","format":1,"mark_delete":[1,2,3]}',
        b'{"record":"cursor","format":1,"mark_delete":[1,2]} trailing',
        b'{"record":"cursor","format":1,"mark_delete":[1,2],"properties":{"\xff":1}}',
        b'{"record":"cursor","mark_delete":' + b"[" * 100_000,
    ],
)
def test_what_is_no_such_record_is_damage_with_its_place(value: bytes) -> None:
    with pytest.raises(CorruptData, match="'/managed-ledgers/x'.*CursorRecord"):
        decode(CursorRecord, value, "/managed-ledgers/x")


def test_a_newer_format_is_refused() -> None:
    value = b'{"record":"tenant","format":2}'
    with pytest.raises(CorruptData, match="newer version"):
        decode(TenantRecord, value, "/tenants/t")


@given(st.binary(max_size=80))
def test_any_bytes_decode_or_are_damage(value: bytes) -> None:
    for kind in (TenantRecord, ManagedLedgerRecord, CursorRecord):
        try:
            decode(kind, value, "/x")
        except CorruptData:
            pass


def test_paths() -> None:
    topic = TopicName.parse("persistent://t/n:1/a b")
    namespace = NamespaceName.parse("t/n:1")
    assert records.tenant_path("t") == "/tenants/t"
    assert records.namespaces_path("t") == "/namespaces/t"
    assert records.namespace_path(namespace) == "/namespaces/t/n%3A1"
    assert records.partitioned_topic_path(topic) == "/partitioned-topics/t/n%3A1/persistent/a%20b"
    assert records.managed_ledger_path(topic) == "/managed-ledgers/t/n%3A1/persistent/a%20b"
    assert (
        records.topics_path(records.MANAGED_LEDGERS, namespace, "persistent")
        == "/managed-ledgers/t/n%3A1/persistent"
    )
    assert records.cursor_path(records.managed_ledger_path(topic), "my/sub") == (
        "/managed-ledgers/t/n%3A1/persistent/a%20b/my%2Fsub"
    )
    assert records.cursor_of("my%2Fsub") == "my/sub"
    assert records.ledger_path(42) == "/ledgers/00000000000000000042"
    assert records.ledger_id_of("00000000000000000042") == 42
    assert records.topic_of(records.managed_ledger_path(topic)) == topic
    assert records.topic_of(records.partitioned_topic_path(topic)) == topic


@given(st.text(min_size=1, max_size=30), st.text(min_size=1, max_size=30))
def test_any_names_make_well_formed_paths(local: str, subscription: str) -> None:
    topic = TopicName.parse("t/n/" + local.replace("/", "_") + "x")
    path = records.cursor_path(records.managed_ledger_path(topic), subscription)
    assert key_of(path)[0] == 6
    assert records.topic_of(path[: path.rindex("/")]) == topic
    assert records.cursor_of(path[path.rindex("/") + 1 :]) == subscription


def test_records_are_not_changed_in_place() -> None:
    with pytest.raises(AttributeError):
        TenantRecord().admin_roles = []  # type: ignore[misc]
    assert msgspec.structs.replace(TenantRecord(), admin_roles=["a"]).admin_roles == ["a"]
