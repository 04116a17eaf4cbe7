"""Values of policies: any JSON is a value or refused, and what is shown is read back the same."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from geminga.broker.policies.endpoint import Policy
from geminga.broker.policies.records import check_created
from geminga.broker.policies.table import POLICIES, check
from geminga.broker.policies.values import (
    BacklogQuota,
    InactiveTopic,
    Int32,
    Int64,
    Persistence,
    PolicyRefused,
    Retention,
    read,
    shown,
)

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**64), 2**64),
    st.floats(allow_nan=False),
    st.text(max_size=8),
    st.sampled_from(["7", "-1", "true", "NaN", "Infinity", "1e999", "Shared", "FULL", "producer_exception"]),
)
NAMES = sorted(
    {
        field.encode_name
        for policy in POLICIES
        if isinstance(policy.kind, type) and issubclass(policy.kind, msgspec.Struct)
        for field in msgspec.structs.fields(policy.kind)
    }
    | {"limit", "limitSize", "limitTime", "policy"}
)
JSON = st.recursive(
    st.one_of(LEAVES, st.dictionaries(st.sampled_from(NAMES), LEAVES, max_size=4)),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=6,
)


@given(value=JSON, policy=st.sampled_from([*POLICIES, Policy("quota", BacklogQuota)]))
def test_any_json_is_a_value_or_refused(value: Any, policy: Policy) -> None:
    try:
        first = read(policy.kind, value)
        check(first)
    except PolicyRefused:
        return
    if first is UNSET:
        return
    stored = msgspec.json.decode(msgspec.json.encode(shown(first)))
    assert read(policy.kind, stored) == first


@pytest.mark.parametrize(
    ("kind", "given", "value"),
    [
        (Int32, "7", 7),
        (Int32, 1.9, 1),
        (Int32, -1.9, -1),
        (Int32, None, 0),
        (Int32, " 5 ", 5),
        (Int64, 2**31, 2**31),
        (bool, "True", True),
        (bool, 2, True),
        (Retention, {"retentionTimeInMinutes": "7", "unknown": []}, Retention(7, 0)),
        (BacklogQuota, {"limit": 5}, BacklogQuota(5)),
        (BacklogQuota, {"limit": 5, "limitSize": 6, "policy": "nope"}, BacklogQuota(6)),
        (
            InactiveTopic,
            {"inactiveTopicDeleteMode": "nope", "deleteWhileInactive": 1},
            InactiveTopic(deletes=True),
        ),
    ],
)
def test_the_reader_is_as_lenient_as_pulsars(kind: Any, given: Any, value: Any) -> None:
    assert read(kind, given) == value


@pytest.mark.parametrize(
    ("kind", "given", "words"),
    [
        (Int32, 2**31, r"Numeric value \(2147483648\) out of range of int \(-2147483648 - 2147483647\)"),
        (Int64, float(2**63), "out of range of long"),
        (Int32, "x", 'Cannot deserialize value of type `int` from String "x": not a valid `int` value'),
        (Int32, True, "from Boolean value"),
        (Retention, [1], "from Array value"),
        (Retention, None, "The request entity cannot be empty."),
        (Persistence, {"managedLedgerMaxMarkDeleteRate": "Infinity"}, "double"),
    ],
)
def test_what_pulsar_refuses_is_refused_in_its_words(kind: Any, given: Any, words: str) -> None:
    with pytest.raises(PolicyRefused, match=words):
        read(kind, given)


def test_a_namespaces_first_policies_are_read_like_any_others() -> None:
    created = check_created(
        {
            "retention_policies": {"retentionTimeInMinutes": "10", "retentionSizeInMB": 10},
            "publishMaxMessageRate": {"standalone": {"publishThrottlingRateInMsg": 3}},
            "backlog_quota_map": {"message_age": {"limitTime": 5, "policy": "producer_exception"}},
            "unknown": 1,
        }
    )
    assert created["retention_policies"] == {"retentionTimeInMinutes": 10, "retentionSizeInMB": 10}
    assert created["publishMaxMessageRate"]["standalone"]["publishThrottlingRateInByte"] == -1
    assert created["backlog_quota_map"]["message_age"]["limitSize"] == 0
    assert created["unknown"] == 1
    with pytest.raises(PolicyRefused, match="Invalid retention policy"):
        check_created({"retention_policies": {"retentionTimeInMinutes": 10}})
    for bad in ([1], "x", {"message_age": 5}):
        with pytest.raises(PolicyRefused):
            check_created({"backlog_quota_map": bad})
