"""Whose data directory it is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
import trio

from geminga.metadata.instance import ForeignDirectory, check_instance
from geminga.metadata.records import InstanceRecord, decode, encode
from geminga.metadata.store import MetadataStore
from simulation.disk.sim_key_value import SimKeyValue


@asynccontextmanager
async def opened(key_value: SimKeyValue) -> AsyncIterator[MetadataStore]:
    store = MetadataStore(key_value, threaded=False)
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        yield store
        nursery.cancel_scope.cancel()


async def test_a_new_directory_gets_an_identity_that_stays() -> None:
    key_value = SimKeyValue()
    async with opened(key_value) as store:
        made = await check_instance(store, cluster="standalone", clock="real", now_ms=7)
    assert (made.format_version, made.cluster, made.clock, made.created_ms) == (3, "standalone", "real", 7)
    assert len(made.instance_id) == 32
    async with opened(key_value.crash()) as store:
        assert await check_instance(store, cluster="standalone", clock="real", now_ms=99) == made
    async with opened(SimKeyValue()) as store:
        other = await check_instance(store, cluster="standalone", clock="real", now_ms=7)
    assert other.instance_id != made.instance_id


@pytest.mark.parametrize("before", [1, 2])
async def test_a_directory_of_an_older_format_is_durably_of_this_one(before: int) -> None:
    key_value = SimKeyValue()
    record = InstanceRecord(
        format_version=before, instance_id="f00d", cluster="standalone", clock="real", created_ms=7
    )
    async with opened(key_value) as store:
        await store.put(InstanceRecord.path, encode(record))
    raised = msgspec.structs.replace(record, format_version=3)
    key_value = key_value.crash()
    async with opened(key_value) as store:
        assert await check_instance(store, cluster="standalone", clock="real", now_ms=99) == raised
    async with opened(key_value.crash()) as store:
        stored = store.get(InstanceRecord.path)
        assert stored is not None
        assert decode(InstanceRecord, stored.value, "") == raised


async def test_foreign_directories_are_refused() -> None:
    async with opened(SimKeyValue()) as store:
        await check_instance(store, cluster="standalone", clock="real", now_ms=7)
        with pytest.raises(ForeignDirectory, match="belongs to cluster 'standalone'.*for 'other'"):
            await check_instance(store, cluster="other", clock="real", now_ms=7)
        with pytest.raises(ForeignDirectory, match="made for a real clock"):
            await check_instance(store, cluster="standalone", clock="virtual", now_ms=7)
        stored = store.get(InstanceRecord.path)
        assert stored is not None
        newer = msgspec.structs.replace(decode(InstanceRecord, stored.value, ""), format_version=4)
        await store.put(InstanceRecord.path, encode(newer))
        with pytest.raises(ForeignDirectory, match="format 4, written by a newer version"):
            await check_instance(store, cluster="standalone", clock="real", now_ms=7)


async def test_data_without_an_identity_is_refused() -> None:
    async with opened(SimKeyValue()) as store:
        await store.put("/tenants/t", b"")
        with pytest.raises(ForeignDirectory, match="no instance record"):
            await check_instance(store, cluster="standalone", clock="real", now_ms=7)
        assert store.get(InstanceRecord.path) is None
