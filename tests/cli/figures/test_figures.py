"""Figures of topics from a page of a real Pulsar's metrics, which `record_metrics.py` wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from geminga.cli.figures import rows
from geminga.cli.figures.scrape import Scrape, parsed

PAGE = Path(__file__).with_name("pulsar_metrics.txt").read_text().splitlines()
NOW = Scrape(10.0, 0.1, *parsed(PAGE))


def test_each_topic_is_a_row_with_its_partitions_summed_up() -> None:
    found = {row["shown"]: row for row in rows.rows(NOW)}
    assert sorted(found) == ['odd"{name}', "parted", "plain"], "topics of the broker itself are left out"
    keys = ("partitions", "backlog", "delayed", "unacked", "subscriptions", "consumers", "producers")
    assert [found["parted"][key] for key in keys] == [3, 6, 0, 6, 1, 3, 3]
    assert [found['odd"{name}'][key] for key in keys] == [None, 2, 2, 0, 1, 1, 1]
    assert [found["plain"][key] for key in keys] == [None, 5, 0, 5, 2, 2, 1]
    assert len(rows.rows(NOW, with_system=True)) > 3


def test_two_looks_make_rates() -> None:
    plain = "persistent://public/default/plain"
    topics = {name: dict(figures) for name, figures in NOW.topics.items()}
    topics[plain]["in_total"] += 30
    topics[plain]["out_total"] = 0
    topics["persistent://public/default/new"] = {"in_total": 100.0, "rate_in": 7.0}
    later = Scrape(12.0, 0.1, topics, {})
    found = {row["shown"]: row for row in rows.rows(later, NOW)}
    assert found["plain"]["rate_in"] == 15.0
    assert found["plain"]["rate_out"] == 0.0, "a counter that was reset"
    assert found["new"]["rate_in"] == 0.0, "what a topic had before it was seen is no rate"


def test_rows_are_sorted_and_equal_ones_by_name() -> None:
    found = rows.rows(NOW)
    assert [row["shown"] for row in rows.in_order(found, "backlog")] == ["parted", "plain", 'odd"{name}']
    assert [row["shown"] for row in rows.in_order(found, "rate_in")] == ['odd"{name}', "parted", "plain"]
    assert rows.in_order(found, "topic", is_reversed=True)[0]["shown"] == "plain"


def test_topics_that_are_not_loaded_have_no_figures() -> None:
    names = [
        f"persistent://public/default/{name}"
        for name in ("parted-partition-0", "asleep", "parted-partition-1")
    ]
    asleep, parted = rows.with_unloaded(rows.rows(NOW), names)
    assert (asleep["shown"], asleep.get("backlog")) == ("asleep", None)
    assert (parted["shown"], parted["backlog"]) == ("parted", 6)


def test_delayed_messages_that_are_not_known_are_not_0() -> None:
    topic = "persistent://public/default/t"
    found = [
        rows.rows(Scrape(1.0, 0.1, {topic: {"delayed": delayed, "unread": unread}}, {}))[0]["delayed_shown"]
        for delayed, unread in ((0.0, 0.0), (7.0, 0.0), (0.0, 9.0), (7.0, 9.0))
    ]
    assert found == ["0", "7", "-", ">=7"]


def test_statistics_of_a_topic_get_the_rates_of_two_looks() -> None:
    consumer = {"consumerName": "c", "msgOutCounter": 5, "msgRateOut": 9.0}
    before = {
        "msgInCounter": 10,
        "msgRateIn": 9.0,
        "subscriptions": {"s": {"msgOutCounter": 5, "msgRateOut": 9.0, "consumers": [consumer]}},
    }
    other = {"consumerName": "new", "msgOutCounter": 50, "msgRateOut": 1.0}
    now = {
        "msgInCounter": 20,
        "msgRateIn": 9.0,
        "subscriptions": {
            "s": {
                "msgOutCounter": 9,
                "msgRateOut": 9.0,
                "consumers": [{**consumer, "msgOutCounter": 9}, other],
            }
        },
    }
    live = rows.live_stats(now, before, 2.0)
    assert live["msgRateIn"] == 5.0
    assert live["subscriptions"]["s"]["msgRateOut"] == 2.0
    assert [one["msgRateOut"] for one in live["subscriptions"]["s"]["consumers"]] == [2.0, 1.0]
    assert rows.live_stats(now, None, 0.0) == now


@pytest.mark.parametrize(
    "line",
    [
        'pulsar_msg_backlog{topic="x"',
        'pulsar_msg_backlog{topic="x"} NaN-ish',
        'pulsar_msg_backlog{topic="x"}',
        "pulsar_msg_backlog 7",
        "pulsar_active_connections",
        "",
        "# HELP pulsar_msg_backlog x",
    ],
)
def test_lines_that_are_cut_short_are_no_crash(line: str) -> None:
    topics, broker = parsed([line])
    assert all(figures["backlog"] == 0.0 for figures in topics.values())
    assert not any(broker.values())


def test_a_name_may_hold_what_a_label_ends_with() -> None:
    topics, _ = parsed(['pulsar_msg_backlog{cluster="c",topic="persistent://a/b/x\\"} 99"} 3 1700000000000'])
    assert topics == {'persistent://a/b/x"} 99': {"backlog": 3.0}}


def test_a_subscription_that_no_consumer_reads_is_seen_beside_one_that_is_read() -> None:
    def lines(subscription: str, entries: int, consumers: int, overdue: int = 0) -> list[str]:
        labels = f'{{topic="persistent://public/default/t",subscription="{subscription}"}}'
        return [
            f"pulsar_subscription_back_log_no_delayed{labels} {entries}",
            f"geminga_subscription_overdue{labels} {overdue}",
            f"pulsar_subscription_delayed{labels} {overdue + 50}",
            f"pulsar_subscription_consumers_count{labels} {consumers}",
        ]

    page = lines("fast", 3, 1, 3) + lines("idle", 89_980, 0, 7) + lines("done", 0, 0) + lines("far", 13, 0)
    [row] = rows.rows(Scrape(1.0, 0.1, *parsed(page)))
    assert (row["unserved"], row["overdue"], row["delayed"]) == (90_000, 10, 210)
    [later] = rows.rows(Scrape(1.0, 0.1, *parsed(lines("later", 0, 0))))
    assert not later["unserved"], "nothing of it is due"
