"""Lets tests of this room share their rigs (`from tests.broker.dispatch_rig import ...`) and a store."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from geminga.metadata.store import MetadataStore
from geminga.storage.key_value import RocksKeyValue
from tests.broker.dispatch_rig import dispatch_rig as dispatch_rig


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[MetadataStore]:
    """A metadata store on a real disk, running."""
    key_value = RocksKeyValue(str(tmp_path / "metadata"))
    metadata = MetadataStore(key_value)
    async with trio.open_nursery() as nursery:
        await nursery.start(metadata.run)
        yield metadata
        nursery.cancel_scope.cancel()
    key_value.close()
