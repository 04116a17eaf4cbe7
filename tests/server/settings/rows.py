"""One row for each wire from a key of broker.conf to what the broker's rooms are given.

A room's settings are flattened into leaves, such as `policies.broker_publish_rate.messages`. A row names
every leaf that its key changes; the test compares all of them, so a row also says that nothing else changes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from geminga.config import file as config_file
from geminga.config.config import Config
from geminga.config.loading import load
from geminga.config.memory_budget import memory_parts
from geminga.server.room_settings import (
    bookie_settings,
    broker_settings,
    clock_kind,
    default_policies,
    delay_settings,
    delivery_log_settings,
    host_names,
    ledger_settings,
    listen_settings,
    service_url,
    subscription_settings,
    tail_cache_settings,
)

LOCAL_HOST, LOCAL_PORT = "127.0.0.9", 6666
"""Where a client has reached the broker, for the URL that it is told."""

ABSENT = "absent"

Leaves = dict[str, object]


class Row(NamedTuple):
    key: str
    value: str
    expected: Leaves
    """Every leaf that differs from the broker without this key, and its value."""
    given: Mapping[str, str] = {}
    """Keys without which this one has no effect; set on both sides of the comparison."""


def config_of(keys: Mapping[str, str]) -> Config:
    """What a broker.conf with these keys means. All of them must be served and fit together."""
    text = "".join(f"{key}={value}\n" for key, value in keys.items())
    loaded = load(file=config_file.parse("broker.conf", text.encode()), environment={})
    assert loaded.notices == []
    return loaded.config


def room_leaves(config: Config) -> Leaves:
    """The settings of every room."""
    rooms = {
        "bookie": bookie_settings(config),
        "broker": broker_settings(config),
        "policies": default_policies(config),
        "subscription": subscription_settings(config),
        "ledger": ledger_settings(config),
        "delay": delay_settings(config),
        "memory": memory_parts(config),
        "tail_cache": tail_cache_settings(config),
        "delivery_log": delivery_log_settings(config),
        "listen": listen_settings(config),
        "clock": clock_kind(config),
        "host_names": host_names(config),
        "service_url": service_url(config, LOCAL_HOST, LOCAL_PORT),
    }
    return flattened(rooms)


def flattened(rooms: Mapping[str, object]) -> Leaves:
    return {leaf: value for name, room in rooms.items() for leaf, value in _flattened(name, room)}


def _flattened(name: str, value: object) -> Iterator[tuple[str, object]]:
    fields: dict[str, object]
    if isinstance(value, msgspec.Struct):
        fields = msgspec.structs.asdict(value)
    elif isinstance(value, tuple) and hasattr(value, "_asdict"):
        fields = value._asdict()
    elif dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    else:
        yield name, value
        return
    for field, inner in fields.items():
        yield from _flattened(f"{name}.{field}", inner)


def changes(before: Leaves, after: Leaves) -> Leaves:
    """The leaves of `after` that differ, with ABSENT for one that only `before` has."""
    return {
        leaf: after.get(leaf, ABSENT)
        for leaf in before.keys() | after.keys()
        if before.get(leaf, ABSENT) != after.get(leaf, ABSENT)
    }
