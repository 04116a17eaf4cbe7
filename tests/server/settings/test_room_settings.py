"""Every key of broker.conf that a room takes changes that room's setting, and no other."""

from __future__ import annotations

import pytest
from msgspec.structs import fields

from geminga.bookie.records.settings import BookieSettings, journal_share
from geminga.config.config import Config
from geminga.limits import MIB
from geminga.server.room_settings import (
    BROKER_TIMESTAMPS,
    bookie_settings,
    broker_settings,
    default_policies,
    delay_settings,
    service_url,
)
from tests.server.settings.rows import Row, changes, config_of, room_leaves
from tests.server.settings.tables import ROOM_ROWS

FIXED = {
    "memory.process",
    "bookie.compaction_slice_bytes",
    "bookie.entry_log_sync_bytes",
    "bookie.journal_alignment_bytes",
    "bookie.journal_spacing_s",
    "bookie.row_entries_max",
    "ledger.cursor_ledger_bytes_max",
    "ledger.cursor_persist_interval_ms",
    "ledger.cursor_state_bytes_max",
    "ledger.ledgers_max",
    "ledger.retention_size_bytes",
    "ledger.retention_time_ms",
    "policies.consumers_max",
    "policies.dispatch_rate.period_s",
    "policies.persistence.ack_quorum",
    "policies.persistence.ensemble",
    "policies.persistence.mark_delete_rate_max",
    "policies.persistence.storage_class",
    "policies.persistence.write_quorum",
    "policies.producers_max",
    "policies.publish_rate",
    "policies.quota_age.limit_size",
    "policies.quota_size.limit_time",
    "policies.subscription_dispatch_rate.period_s",
    "policies.subscription_rates",
    "policies.subscriptions_max",
    "subscription.look_ahead_max_per_consumer",
    "subscription.look_ahead_max_per_subscription",
    "subscription.read_retry_ms_max",
    "subscription.read_retry_ms_min",
}
"""Settings of the rooms that no key changes."""


@pytest.mark.parametrize("row", ROOM_ROWS, ids=lambda row: row.key)
def test_a_key_changes_its_own_setting_and_no_other(row: Row) -> None:
    before = room_leaves(config_of(row.given))
    after = room_leaves(config_of({**row.given, row.key: row.value}))
    found = changes(before, after)
    assert found == row.expected
    assert {leaf: type(value) for leaf, value in found.items()} == {
        leaf: type(value) for leaf, value in row.expected.items()
    }


def test_every_setting_of_a_room_has_a_key_or_is_fixed() -> None:
    wired = {leaf for row in ROOM_ROWS for leaf in row.expected}
    leaves = {leaf for row in ROOM_ROWS for leaf in room_leaves(config_of({**row.given, row.key: row.value}))}
    assert leaves - wired == FIXED


def test_without_a_key_the_bookie_has_its_own_defaults() -> None:
    """Only the memory's parts come from the budget."""
    own, configured = BookieSettings(), bookie_settings(Config())
    differing = {
        field.name for field in fields(own) if getattr(own, field.name) != getattr(configured, field.name)
    }
    assert differing <= {
        "write_cache_bytes",
        "read_cache_bytes",
        "queue_bytes_max",
        "journal_group_bytes_max",
    }


def test_a_journal_group_is_never_larger_than_the_memory_for_it() -> None:
    usual = bookie_settings(Config())
    changed = bookie_settings(
        Config(journal_buffered_writes_threshold=2**40, journal_buffered_entries_threshold=2**30)
    )
    assert changed == usual
    several = Config(journal_buffered_writes_threshold=1000, journal_directories=("a", "b"))
    assert journal_share(bookie_settings(several), 2).journal_group_bytes_max == 1000


def test_the_low_water_mark_follows_a_lower_threshold() -> None:
    assert bookie_settings(Config()).disk_usage_lwm_threshold == 0.90
    assert bookie_settings(Config(disk_usage_threshold=0.8)).disk_usage_lwm_threshold == 0.8
    assert bookie_settings(Config(disk_usage_threshold=0.99)).disk_usage_lwm_threshold == 0.90


def test_the_free_space_that_is_kept_holds_the_write_cache_twice() -> None:
    """0 turns the bound off."""
    for kept_mb, expected_mb in ((300, 300), (50, 80), (0, 0)):
        config = Config(disk_free_bytes_min=kept_mb * MIB, db_storage_write_cache_max_size_mb=40)
        assert bookie_settings(config).disk_free_bytes_min == expected_mb * MIB


def test_the_queue_holds_a_journal_group_that_is_larger_than_the_publish_memory() -> None:
    config = Config(journal_max_memory_size_mb=40, max_message_publish_buffer_size_in_mb=9)
    assert bookie_settings(config).queue_bytes_max == 40 * MIB


def test_a_compaction_of_zero_milliseconds_is_not_one_without_a_limit() -> None:
    config = Config(minor_compaction_max_time_millis=0, major_compaction_max_time_millis=0)
    assert bookie_settings(config).minor_compaction_max_s == 0.0
    assert bookie_settings(config).major_compaction_max_s == 0.0


def test_the_number_of_partitions_counts_only_for_partitioned_topics() -> None:
    assert default_policies(Config(default_num_partitions=4)).auto_topic_creation.partition_count == 0
    partitioned = Config(allow_auto_topic_creation_type="partitioned", default_num_partitions=4)
    assert default_policies(partitioned).auto_topic_creation.partition_count == 4


def test_broker_timestamps_are_found_among_other_interceptors() -> None:
    several = Config(broker_entry_metadata_interceptors=f"a.B,{BROKER_TIMESTAMPS},c.D")
    assert broker_settings(several).expires_by_broker_time
    other = Config(broker_entry_metadata_interceptors=f"{BROKER_TIMESTAMPS}2")
    assert not broker_settings(other).expires_by_broker_time


def test_topics_may_be_inactive_for_no_time_at_all() -> None:
    config = Config(broker_delete_inactive_topics_max_inactive_duration_seconds=0)
    assert default_policies(config).inactive_topic.inactive_s_max == 0


def test_no_bound_on_a_segment_is_written_as_0_or_as_minus_1() -> None:
    for value in (0, -1):
        config = Config(delayed_delivery_max_indexes_per_bucket_snapshot_segment=value)
        assert delay_settings(config).segment_indexes_max == -1


def test_a_client_is_told_the_address_that_it_has_used_unless_another_is_advertised() -> None:
    assert service_url(Config(), "127.0.0.1", 6650) == "pulsar://127.0.0.1:6650"
    assert service_url(Config(), "::1", 6650) == "pulsar://[::1]:6650"
    assert service_url(Config(advertised_address="fd00::2"), "::1", 7) == "pulsar://[fd00::2]:7"
