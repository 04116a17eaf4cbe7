"""What a stream has read and acknowledged on its subscription may be trimmed before the next trigger."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from geminga.pipeline.errors import DataLost
from geminga.pipeline.topics.streaming import Offsets, StreamPlan
from tests.e2e.admin_http import Admin, topic_path
from tests.pipeline.conftest import Topics
from tests.pipeline.topics.test_topics import read_values

Plans = Callable[..., StreamPlan]


@pytest.fixture
def plans(topics: Topics, topic: str) -> Iterator[Plans]:
    made: list[StreamPlan] = []

    def make(**options: str) -> StreamPlan:
        made.append(StreamPlan(topics.options(topic, startingOffsets="earliest", **options)))
        return made[-1]

    yield make
    for plan in made:
        plan.close()


def read_all(topics: Topics, plan: StreamPlan, offsets: Offsets) -> tuple[Offsets, list[bytes]]:
    """A trigger, and the next one, which acknowledges what the first has read."""
    end = plan.latest(offsets, limited=False)
    values = [value for wanted in plan.ranges(offsets, end) for value in read_values(topics, wanted)]
    assert plan.latest(end, limited=False) == end
    return end, values


def unload(admin: Admin, topic: str) -> None:
    """What comes next goes to a new ledger."""
    assert admin.put(f"/admin/v2/{topic_path(topic)}/unload").status == 204


def trim(admin: Admin, topic: str) -> None:
    """Every ledger but the newest goes, read or not."""
    assert admin.delete(f"/admin/v2/{topic_path(topic)}/truncate").status == 204


@pytest.mark.parametrize("restarted", [True, False], ids=["restarted", "running"])
def test_what_the_subscription_has_acknowledged_counts_as_read(
    topics: Topics, admin: Admin, topic: str, plans: Plans, restarted: bool
) -> None:
    values = [b"%d" % n for n in range(10)]
    topics.write(topic, {"value": values}, batchRows="1")
    plan = plans(predefinedSubscription="spark")
    offsets, found = read_all(topics, plan, plan.initial())
    assert found == values
    unload(admin, topic)
    assert plan.latest(offsets, limited=False) == offsets  # the topic is loaded, with a new ledger
    trim(admin, topic)
    topics.write(topic, {"value": [b"new"]})
    if restarted:
        plan.close()
        plan = plans(predefinedSubscription="spark")
    assert read_all(topics, plan, offsets)[1] == [b"new"]


@pytest.mark.parametrize("warns", [False, True], ids=["fail", "warn"])
def test_without_a_subscription_nobody_can_tell_whether_something_was_lost(
    topics: Topics, admin: Admin, topic: str, plans: Plans, warns: bool
) -> None:
    topics.write(topic, {"value": [b"old"] * 10}, batchRows="1")
    plan = plans(**({"unknownLedgerEnd": "warn"} if warns else {}))
    offsets, found = read_all(topics, plan, plan.initial())
    assert found == [b"old"] * 10
    unload(admin, topic)
    assert plan.latest(offsets, limited=False) == offsets
    trim(admin, topic)
    topics.write(topic, {"value": [b"new"]})
    reasons = "ended there and nothing is missing, or .* deleted unread"
    if warns:
        with pytest.warns(UserWarning, match=f"{reasons}.* because unknownLedgerEnd is warn"):
            assert read_all(topics, plan, offsets)[1] == [b"new"]
    else:
        with pytest.raises(DataLost, match=f"{reasons}.* Set unknownLedgerEnd=warn"):
            read_all(topics, plan, offsets)


def test_what_others_have_acknowledged_on_the_subscription_is_lost(
    topics: Topics, admin: Admin, topic: str, plans: Plans
) -> None:
    topics.write(topic, {"value": [b"old"] * 10}, batchRows="1")
    plan = plans(predefinedSubscription="spark")
    offsets, _ = read_all(topics, plan, plan.initial())
    plan.close()
    topics.write(topic, {"value": [b"lost"]})
    unload(admin, topic)
    topics.write(topic, {"value": [b"new"]})
    trim(admin, topic)  # which moves the subscription to the end
    with pytest.raises(DataLost, match="the rest was trimmed"):
        read_all(topics, plans(predefinedSubscription="spark"), offsets)


def test_a_stream_goes_on_after_its_topic_was_unloaded(
    topics: Topics, admin: Admin, topic: str, plans: Plans
) -> None:
    """The broker has closed the consumer that acknowledges, but not the connection."""
    topics.write(topic, {"value": [b"a"]})
    plan = plans(predefinedSubscription="spark")
    offsets, found = read_all(topics, plan, plan.initial())
    for value in (b"b", b"c"):
        unload(admin, topic)
        topics.write(topic, {"value": [value]})
        offsets, values = read_all(topics, plan, offsets)
        found += values
    assert found == [b"a", b"b", b"c"]
    stats = admin.get(f"/admin/v2/{topic_path(topic)}/stats").json()
    assert stats["subscriptions"]["spark"]["msgBacklog"] == 0
