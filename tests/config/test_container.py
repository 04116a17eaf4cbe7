"""The image's own defaults, below the file, the environment and the flags."""

from __future__ import annotations

import pytest

from geminga.config.container import jvm_budget_mb
from geminga.config.file import Property, parse
from geminga.config.loading import load

CONTAINER = {"GEMINGA_CONTAINER": "1"}
GO_MODULE = " -Xms512m -Xmx512m -XX:MaxDirectMemorySize=512m"  # what the tests of testcontainers-go set


@pytest.mark.parametrize(
    ("options", "budget_mb"),
    [
        (GO_MODULE, 960),
        ("-Xmx1g", 960),
        ("-Xmx1g -Xmx512m", 448),
        ("-Xmx1048576k", 960),
        ("-Xmx1073741824", 960),
        ("-Xms2g -Xmx2g -XX:MaxDirectMemorySize=4g", 6080),
        ("-Xmx64m", 160),
        ("-Xmx999999999999t", 1024 * 1024),
        ("-Xms512m", None),
        ("-XX:MaxDirectMemorySize=4g", None),
        ("-Xmx", None),
        ("-Xmx12q", None),
    ],
)
def test_the_budget_is_what_a_jvm_may_take(options: str, budget_mb: int | None) -> None:
    assert jvm_budget_mb(options) == budget_mb


def test_the_memory_of_the_image_gives_way_to_settings_and_is_told() -> None:
    loaded = load(environment={**CONTAINER, "PULSAR_MEM": GO_MODULE})
    assert loaded.config.memory_mb == 960
    assert loaded.notices == [
        "PULSAR_MEM: heap and direct memory stand for a memory budget of 960 MB, unless memoryMb or --memory "
        "names another"
    ]
    environment = {**CONTAINER, "PULSAR_MEM": GO_MODULE, "PULSAR_PREFIX_memoryMb": "300"}
    assert load(environment=environment).config.memory_mb == 300
    assert load(environment={**CONTAINER, "PULSAR_MEM": "-Xss1m"}).config.memory_mb == 192
    assert load(environment={"PULSAR_MEM": GO_MODULE}).config.memory_mb == 192, "outside the image"


def test_the_image_listens_on_all_addresses_unless_told_otherwise() -> None:
    assert load(environment=CONTAINER).config.bind_address == "0.0.0.0"
    assert load(environment={}).config.bind_address == "127.0.0.1"
    empty = parse("standalone.conf", b"bindAddress=\n")
    assert load(file=empty, environment=CONTAINER).config.bind_address == "0.0.0.0"
    named = parse("standalone.conf", b"bindAddress=127.0.0.1\n")
    assert load(file=named, environment=CONTAINER).config.bind_address == "127.0.0.1"
    flag = [Property("bindAddress", "::1", "--bind-address ::1")]
    assert load(environment=CONTAINER, flags=flag).config.bind_address == "::1"
