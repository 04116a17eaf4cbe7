"""The parts that `--chaos` replaces by parts with faults. Without it, nothing of them is imported."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import trio

from geminga.bookie.index.database import IndexDatabase
from geminga.clock import RealClock
from geminga.config.config import Config
from geminga.metadata.space_reserve import SpaceReserve
from geminga.metadata.store import MetadataStore
from geminga.server.admission import Handler
from geminga.server.bookie_opening import IndexOf
from geminga.storage.disk import RealDisk
from geminga.storage.key_value import KeyValue

if TYPE_CHECKING:
    from geminga.admin.http.connection import Application
    from geminga.broker.delays.settings import NewBucketStore
    from geminga.chaos.rules.faults import Faults


class FaultParts(NamedTuple):
    """The doors of the storage, as they are or with faults."""

    disk: RealDisk
    metadata_of: Callable[[KeyValue, SpaceReserve], MetadataStore]
    index_of: IndexOf


def faults_of(config: Config) -> Faults | None:
    """The rules of a process; None without `--chaos`."""
    if not config.chaos_enabled:
        return None
    from geminga.chaos.rules.faults import Faults

    # Rules last for real time, whatever a virtual clock does.
    return Faults(RealClock())


def points_of(faults: Faults | None) -> Callable[[str], None]:
    """What the process calls at its named points."""
    if faults is None:
        return lambda name: None
    from geminga.chaos.rules.killing import Points

    return Points(faults.doors["process"]).passed


def fault_parts(faults: Faults | None) -> FaultParts:
    """For one opening of the data directory."""
    if faults is None:
        return FaultParts(RealDisk(), MetadataStore, IndexDatabase)
    from geminga.chaos.disk.faulty_disk import FaultyDisk
    from geminga.chaos.disk.faulty_index import FaultyIndexDatabase
    from geminga.chaos.disk.faulty_metadata import FaultyMetadata

    return FaultParts(
        FaultyDisk(faults),
        functools.partial(FaultyMetadata, faults=faults),
        functools.partial(FaultyIndexDatabase, faults=faults),
    )


def bucket_stores_of(faults: Faults | None) -> NewBucketStore | None:
    """What makes stores of buckets that can fail; None: the usual ones."""
    if faults is None:
        return None
    from geminga.chaos.bucket_stores import faulty_bucket_stores

    return faulty_bucket_stores(faults.doors["bucket"])


def faulty_wire(serve: Handler, faults: Faults | None, nursery: trio.Nursery) -> Handler:
    """`serve` for clients whose connections can fail; relays run in `nursery`."""
    if faults is None:
        return serve
    from geminga.chaos.wire.faulty_socket import WireFaults

    return WireFaults(faults, nursery).faulty(serve)


def faulty_admin(application: Application, faults: Faults | None) -> Application:
    """`application` for HTTP clients whose requests can fail."""
    if faults is None:
        return application
    from geminga.admin.http.faulty import FaultyApplication

    return FaultyApplication(application, faults.doors["admin"])
