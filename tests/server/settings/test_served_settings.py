"""A running broker gives its rooms what server/room_settings.py makes of the configuration.

Every key has another value than its default here, so a setting that is not handed on is one that differs.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from geminga.config.config import Config
from geminga.config.memory_budget import memory_parts
from geminga.metadata.records import InstanceRecord, decode
from tests.server.settings.rows import Leaves, changes, config_of, room_leaves
from tests.server.settings.served_rig import serving
from tests.server.settings.tables import ROOM_ROWS, every_key


def without_url(leaves: Leaves) -> Leaves:
    """The URL contains the port, which is a free one here."""
    return {leaf: value for leaf, value in leaves.items() if leaf != "service_url"}


def test_every_setting_that_has_a_key_is_another_one_here(tmp_path: Path) -> None:
    changed = changes(room_leaves(Config()), room_leaves(config_of(every_key(tmp_path))))
    assert {leaf for row in ROOM_ROWS for leaf in row.expected} <= changed.keys()


async def test_every_room_has_the_settings_of_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(every_key(tmp_path))
    async with serving(config, tmp_path / "data", monkeypatch) as found:
        assert found.leaves == without_url(room_leaves(config))
        rooms, parts = found.rooms, memory_parts(config)
        assert found.recorder.only("BlockCache").given == {"0": parts.block_cache}
        assert rooms.publish_memory.bytes_max == parts.publish
        assert rooms.send_memory.bytes_max == parts.outboxes
        assert rooms.read_memory.bytes_max == parts.reads
        assert rooms.client_metadata.bytes_max == parts.client_metadata
        assert rooms.publish_limit is not None
        assert (rooms.publish_limit.messages_per_s, rooms.publish_limit.bytes_per_s) == (73, 7300)
        assert rooms.delivery_log is found.recorder.only("DeliveryLog").made
        opened = found.recorder.only("open_directories").given
        assert opened["1"] == [f"{tmp_path}/j1", f"{tmp_path}/j2"]
        assert [place.directory for place in opened["2"]] == [f"{tmp_path}/l{number}" for number in (1, 2, 3)]


async def test_cluster_addresses_and_the_configuration_itself_reach_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(every_key(tmp_path))
    async with serving(config, tmp_path / "data", monkeypatch) as found:
        assert found.view.config == config
        assert found.rooms.namespaces.cluster == "pulsar-1"
        stored = found.rooms.metadata.get(InstanceRecord.path)
        assert stored is not None
        assert decode(InstanceRecord, stored.value, InstanceRecord.path).cluster == "pulsar-1"
        bound = tuple(call.made[0].getsockname()[1] for call in found.recorder.calls["bind"])
        assert bound == found.addresses == (found.view.binary_port, found.view.web_port)
        assert found.url_told() == f"pulsar://broker.example:{found.addresses.binary_port}"


async def test_without_any_key_every_room_has_its_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(Config(), tmp_path / "data", monkeypatch) as found:
        assert found.leaves == without_url(room_leaves(Config()))
        assert found.rooms.publish_limit is None
        assert found.rooms.delivery_log is None
        opened = found.recorder.only("open_directories").given
        assert opened["1"] == [f"{tmp_path}/data/bookie"]
        assert [place.directory for place in opened["2"]] == [f"{tmp_path}/data/bookie"]
        assert found.url_told() == f"pulsar://127.0.0.1:{found.addresses.binary_port}"
