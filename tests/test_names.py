"""Names: accepted, split and refused as by Pulsar's own TopicName, NamespaceName and NamedEntity."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from geminga.errors import InvalidName
from geminga.limits import NAME_BYTES_MAX
from geminga.names import (
    NamespaceName,
    TopicDomain,
    TopicName,
    check_producer_name,
    check_subscription,
    check_tenant,
    decode_name,
    encode_name,
)
from tests.oracle.tables import REFUSED, json_rows, rows

TOPIC_NAMES = json_rows("topic_names")
"""[input, full name, namespace, local name, partition index, partitioned topic] or [input, REFUSED]."""
BARE_PARTITION = "t/n/-partition-3"
"""For Pulsar partition 3 of a topic without a name."""
ACCEPTED = [
    row for row in TOPIC_NAMES if row[1] != REFUSED and row[2].count("/") == 1 and row[0] != BARE_PARTITION
]
WITH_CLUSTER = [row[0] for row in TOPIC_NAMES if row[1] != REFUSED and row[2].count("/") == 2]
NAMESPACES = json_rows("namespaces")
"""[input, tenant, cluster, local name] or [input, REFUSED]."""
TENANTS = [(json.loads(name), verdict == "accepted") for name, verdict in rows("tenants")]


@pytest.mark.parametrize(("text", "full", "namespace", "local", "index", "partitioned"), ACCEPTED)
def test_accepts_what_pulsar_accepts(
    text: str, full: str, namespace: str, local: str, index: int, partitioned: str | None
) -> None:
    name = TopicName.parse(text)
    assert str(name) == full
    assert str(name.namespace) == namespace
    assert name.local == local
    assert name.partition_index == index
    assert str(name.partitioned_name) == (partitioned or full)
    assert TopicName.parse(full) == name


@pytest.mark.parametrize("text", [row[0] for row in TOPIC_NAMES if row[1] == REFUSED])
def test_refuses_what_pulsar_refuses(text: str) -> None:
    with pytest.raises(InvalidName):
        TopicName.parse(text)


@pytest.mark.parametrize("text", [*WITH_CLUSTER, "persistent://t/n/x/"])
def test_refuses_names_with_a_cluster_and_says_what_to_use(text: str) -> None:
    with pytest.raises(InvalidName, match="use tenant/namespace/topic"):
        TopicName.parse(text)


def test_partitions_of_a_topic() -> None:
    name = TopicName.parse("non-persistent://t/n/x")
    assert str(name.partition(5)) == "non-persistent://t/n/x-partition-5"
    assert name.partition(5).partitioned_name == name
    assert name.partition(5).partition(5) == name.partition(5)
    assert str(name.partition(3).partition(5)) == "non-persistent://t/n/x-partition-3-partition-5"
    assert name.partition(0).is_partition
    assert not name.is_partition


def test_a_bare_partition_suffix_is_a_name_of_its_own() -> None:
    name = TopicName.parse(BARE_PARTITION)
    assert (name.local, name.partition_index, name.partitioned_name) == ("-partition-3", -1, name)


def test_domains_keep_topics_apart() -> None:
    names = {TopicName.parse("persistent://t/n/x"), TopicName.parse("non-persistent://t/n/x")}
    assert len(names) == 2
    assert {name.domain for name in names} == set(TopicDomain)
    assert {name.is_persistent for name in names} == {True, False}


@pytest.mark.parametrize("text", [row[0] for row in NAMESPACES if row[1] == REFUSED])
def test_refuses_namespaces(text: str) -> None:
    with pytest.raises(InvalidName):
        NamespaceName.parse(text)


def test_namespace() -> None:
    name = NamespaceName.parse("t/n")
    assert (name.tenant, name.local, str(name)) == ("t", "n", "t/n")
    assert name == NamespaceName("t", "n")
    assert hash(name) == hash(NamespaceName("t", "n"))


@pytest.mark.parametrize("row", [row for row in NAMESPACES if row[1] != REFUSED], ids=str)
def test_accepts_the_namespaces_that_pulsar_accepts_unless_they_have_a_cluster(row: list[Any]) -> None:
    text, tenant, cluster, local = row
    if cluster is not None:
        with pytest.raises(InvalidName, match="use tenant/namespace"):
            NamespaceName.parse(text)
        return
    name = NamespaceName.parse(text)
    assert (name.tenant, name.local, str(name)) == (tenant, local, text)


@pytest.mark.parametrize("name", [name for name, is_accepted in TENANTS if is_accepted and name])
def test_tenants(name: str) -> None:
    assert check_tenant(name) == name


@pytest.mark.parametrize("name", ["", *(name for name, is_accepted in TENANTS if not is_accepted)])
def test_refuses_tenants(name: str) -> None:
    with pytest.raises(InvalidName):
        check_tenant(name)


def test_subscriptions_are_any_text_that_is_not_blank() -> None:
    for name in ["s", "a/b", "..", "a b\n", "é", "\xa0"]:
        assert check_subscription(name) == name
    for name in ["", " ", "\t\n\u3000"]:
        with pytest.raises(InvalidName, match="empty subscription"):
            check_subscription(name)


def test_names_are_bounded_in_bytes_not_in_characters() -> None:
    fits = "é" * ((NAME_BYTES_MAX - len("persistent://t/n/")) // 2)
    assert TopicName.parse(f"t/n/{fits}").local == fits
    for text in [f"t/n/{fits}é", "x" * (NAME_BYTES_MAX + 1)]:
        with pytest.raises(InvalidName, match="longer than"):
            TopicName.parse(text)
    with pytest.raises(InvalidName, match="longer than"):
        check_subscription("s" * (NAME_BYTES_MAX + 1))
    assert check_producer_name("") == ""
    with pytest.raises(InvalidName):
        check_producer_name("p" * (NAME_BYTES_MAX + 1))


def test_lone_surrogates_are_not_text() -> None:
    for check in (TopicName.parse, check_subscription, check_tenant, NamespaceName.parse):
        with pytest.raises(InvalidName):
            check("t/n/\ud800" if check is TopicName.parse else "\ud800")


def test_error_texts_are_one_short_printable_line() -> None:
    for text in ["\n" * 5000, "persistent://t\n/n/x", "a/\x1b[31m", "x" * 100_000]:
        with pytest.raises(InvalidName) as caught:
            TopicName.parse(text)
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 700


@given(st.text())
@example("../../etc/passwd")
def test_encoded_names_are_one_harmless_component(name: str) -> None:
    encoded = encode_name(name)
    assert decode_name(encoded) == name
    assert encoded.isascii()
    assert "/" not in encoded
    assert encoded.isprintable()


_entities = st.text("abcXYZ019-=:._", min_size=1, max_size=12)
_locals = st.text(min_size=1, max_size=40) | st.from_regex(r"[a-c]-partition-[0-9]{1,11}", fullmatch=True)


@given(st.sampled_from(TopicDomain), _entities, _entities, _locals)
def test_round_trip_or_refusal(domain: TopicDomain, tenant: str, namespace: str, local: str) -> None:
    text = f"{domain.value}://{tenant}/{namespace}/{local}"
    try:
        name = TopicName.parse(text)
    except InvalidName:
        assert "/" in local or local.isspace()
        return
    assert str(name) == text
    assert (name.domain, name.tenant, name.namespace.local, name.local) == (domain, tenant, namespace, local)
    assert TopicName.from_path(name.path) == name
    assert name.path.count("/") == 3
    if name.is_partition:
        assert name.partitioned_name.partition(name.partition_index) == name


@given(st.text(max_size=60))
def test_any_text_parses_or_is_refused(text: str) -> None:
    for parse in (TopicName.parse, NamespaceName.parse, check_tenant, check_subscription):
        try:
            parse(text)
        except InvalidName:
            pass
