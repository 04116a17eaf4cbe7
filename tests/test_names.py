"""Names: the table was produced by Pulsar 4.0.7's own TopicName and NamespaceName."""

from __future__ import annotations

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

# input, full name, namespace, local name, partition index, name of the partitioned topic
ACCEPTED = [
    ("x", "persistent://public/default/x", "public/default", "x", -1, None),
    ("t/n/x", "persistent://t/n/x", "t/n", "x", -1, None),
    ("persistent://t/n/x", "persistent://t/n/x", "t/n", "x", -1, None),
    ("non-persistent://t/n/x", "non-persistent://t/n/x", "t/n", "x", -1, None),
    ("Persistent://t/n/x", "persistent://t/n/x", "t/n", "x", -1, None),
    ("persistent://t/n/\xa0", "persistent://t/n/\xa0", "t/n", "\xa0", -1, None),
    ("persistent://t/n/\x85", "persistent://t/n/\x85", "t/n", "\x85", -1, None),
    ("persistent://t/n/x-partition-3", "persistent://t/n/x-partition-3", "t/n", "x-partition-3", 3,
     "persistent://t/n/x"),
    ("x-partition-0", "persistent://public/default/x-partition-0", "public/default", "x-partition-0", 0,
     "persistent://public/default/x"),
    ("t/n/x-partition-03", "persistent://t/n/x-partition-03", "t/n", "x-partition-03", -1, None),
    ("t/n/x-partition--1", "persistent://t/n/x-partition--1", "t/n", "x-partition--1", -1, None),
    ("t/n/x-partition-+1", "persistent://t/n/x-partition-+1", "t/n", "x-partition-+1", -1, None),
    ("t/n/x-partition-", "persistent://t/n/x-partition-", "t/n", "x-partition-", -1, None),
    ("t/n/x-partition-2147483647", "persistent://t/n/x-partition-2147483647", "t/n",
     "x-partition-2147483647", 2147483647, "persistent://t/n/x"),
    ("t/n/x-partition-2147483648", "persistent://t/n/x-partition-2147483648", "t/n",
     "x-partition-2147483648", -1, None),
    ("t/n/x-partition-1-partition-2", "persistent://t/n/x-partition-1-partition-2", "t/n",
     "x-partition-1-partition-2", 2, "persistent://t/n/x-partition-1"),
    ("t/n/x-partition-1-DLQ", "persistent://t/n/x-partition-1-DLQ", "t/n", "x-partition-1-DLQ", -1, None),
    ("t-partition-3/n/x", "persistent://t-partition-3/n/x", "t-partition-3/n", "x", -1, None),
    ("persistent://t/n=:.-_/x", "persistent://t/n=:.-_/x", "t/n=:.-_", "x", -1, None),
    ("persistent://../n/..", "persistent://../n/..", "../n", "..", -1, None),
    ("t/n/x y", "persistent://t/n/x y", "t/n", "x y", -1, None),
    ("t/n/x\0\n", "persistent://t/n/x\0\n", "t/n", "x\0\n", -1, None),
    ("t/n/%2e", "persistent://t/n/%2e", "t/n", "%2e", -1, None),
    ("t/n/é中\U0001f600", "persistent://t/n/é中\U0001f600", "t/n", "é中\U0001f600", -1, None),
    ("t/n/x?y#z", "persistent://t/n/x?y#z", "t/n", "x?y#z", -1, None),
]  # fmt: skip

REFUSED = [
    "", "/", " ", "\x1c", "a/b", "a//b", "a/b/c/d", "a/b/c/d/e", "foo://t/n/x", "topic://t/n/x",
    "segment://t/n/x", "://t/n/x", "persistent://", "persistent://t/n", "persistent://t/n/",
    "persistent://t/n/ ", "persistent://t/n/\u2003", "persistent://t//x", "persistent:///n/x",
    "persistent://té/n/x", "persistent://t b/n/x", "persistent://t/n\n/x", "t/n/a://b",
]  # fmt: skip


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


@pytest.mark.parametrize("text", REFUSED)
def test_refuses_what_pulsar_refuses(text: str) -> None:
    with pytest.raises(InvalidName):
        TopicName.parse(text)


@pytest.mark.parametrize(
    "text",
    ["persistent://t/c/n/x", "persistent://t/c/n/x/y", "persistent://t/n/a://b", "persistent://t/n/x/"],
)
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
    assert TopicName.parse("t/n/-partition-3").partition_index == -1


def test_domains_keep_topics_apart() -> None:
    names = {TopicName.parse("persistent://t/n/x"), TopicName.parse("non-persistent://t/n/x")}
    assert len(names) == 2
    assert {name.domain for name in names} == set(TopicDomain)
    assert {name.is_persistent for name in names} == {True, False}


@pytest.mark.parametrize("text", ["t", "t/", "/n", "", "t/n/x/y", "t /n", "t/n\n", "tä/n"])
def test_refuses_namespaces(text: str) -> None:
    with pytest.raises(InvalidName):
        NamespaceName.parse(text)


def test_namespace() -> None:
    name = NamespaceName.parse("t/n")
    assert (name.tenant, name.local, str(name)) == ("t", "n", "t/n")
    assert name == NamespaceName("t", "n")
    assert hash(name) == hash(NamespaceName("t", "n"))
    with pytest.raises(InvalidName, match="use tenant/namespace"):
        NamespaceName.parse("t/c/n")


@pytest.mark.parametrize("name", ["public", "a-b=c:d.e_F9", "..", "-"])
def test_tenants(name: str) -> None:
    assert check_tenant(name) == name


@pytest.mark.parametrize("name", ["", "a/b", "a b", "é", "٣", "a\n"])
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
