"""The parts that `--chaos` replaces by parts with faults. Without it, nothing of them is imported."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import trio

from geminga.bookie.index.database import IndexDatabase
from geminga.clock import Clock, RealClock
from geminga.config.config import Config, ConfigError
from geminga.errors import StorageError
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
    from geminga.chaos.rules.rule import Rule

FAULTS = "faults.json"
"""The name of the file of kept rules inside a data directory."""
DAMAGED = ".damaged"
"""The end of its name when it made no sense."""
NOT_VIRTUAL = "the clock is virtual; 'geminga clock' moves it"

log = logging.getLogger("geminga.server")


class ClockNotReal(StorageError):
    """A start with a rule about the clock, on a data directory whose clock is virtual."""


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


def rules_of(files: Sequence[str], config: Config) -> list[Rule]:
    """The rules that a start has from these files. Raises ConfigError."""
    if not files:
        return []
    if not config.chaos_enabled:
        raise ConfigError([f"--fault {files[0]}: faults are injected only with --chaos"])
    from geminga.chaos.rules.faults import RULES_MAX
    from geminga.chaos.rules.rule import InvalidRule
    from geminga.chaos.rules.rule_file import rules_at_start

    disk, texts = RealDisk(for_owner=False), {}
    for name in files:
        try:
            texts[name] = disk.read_file(name).decode()
        except (StorageError, UnicodeDecodeError) as error:
            raise ConfigError([f"--fault {name}: {error}"]) from None
    try:
        rules = rules_at_start(texts)
    except InvalidRule as error:
        raise ConfigError([f"--fault {error}"]) from None
    if len(rules) > RULES_MAX:
        raise ConfigError([f"--fault: expected at most {RULES_MAX} rules, not {len(rules)}"])
    if config.geminga_clock == "virtual":
        for rule in rules:
            if rule.place == "clock":
                raise ConfigError([f"--fault: {rule.id} clock/{rule.kind}: {NOT_VIRTUAL}"])
    return rules


def put_in_force(faults: Faults | None, rules: Sequence[Rule], disk: RealDisk, data_dir: str) -> None:
    """Before anything of the data directory is opened. Raises StorageError."""
    path = os.path.join(data_dir, FAULTS)
    if faults is not None:
        from geminga.chaos.rules.kept_file import KeptFile

        faults.begin(rules, KeptFile(disk, path, path + DAMAGED))
    elif disk.exists(path):
        log.warning("%s has rules of faults; none is in force without --chaos", path)


def wall_clock(faults: Faults | None, held: contextlib.ExitStack) -> RealClock:
    """The machine's clock, with `--chaos` as rules change it; `held` ends that."""
    if faults is None:
        return RealClock()
    from geminga.chaos.faulty_clock import FaultyClock

    clock = FaultyClock(faults)
    held.callback(clock.close)
    return clock


def check_clock(faults: Faults | None, clock: Clock) -> None:
    """Raises ClockNotReal. No rule that it refuses is kept: or later starts would be refused as well."""
    if faults is None or not clock.is_virtual:
        return
    refused = [armed.rule for armed in faults.doors["clock"].armed]
    for rule in refused:
        faults.clear(rule.id)
    if refused:
        raise ClockNotReal(f"{refused[0].id} clock/{refused[0].kind}: {NOT_VIRTUAL}")


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
