"""The owner, the format and the starts of a data directory; the first two are checked before anything else in
it is read or written.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Sequence
from typing import Literal

import msgspec

from geminga.errors import StorageError
from geminga.metadata.node import MUST_NOT_EXIST
from geminga.metadata.records import STARTS_MAX, InstanceRecord, Start, StartsRecord, decode, encode
from geminga.metadata.store import MetadataStore

DIRECTORY_FORMAT_VERSION = 3
"""The latest known version of the whole data directory. It is raised when an older program would damage or
misread newer files. 2: the bookie's directories are recorded, and are not the default ones. 3: the bookie's
files name the ledgers, in records that an older program takes for entries.
"""


class ForeignDirectory(StorageError):
    """The data directory is of a newer version, another cluster, or another kind of clock."""


async def check_instance(
    store: MetadataStore,
    *,
    cluster: str,
    clock: Literal["auto", "real", "virtual"],
    now_ms: int,
    new_id: str | None = None,
) -> InstanceRecord:
    """The directory's record. An empty store gets a durable record; a record of an older format is updated
    durably.

    `store.run` must be running. With "auto" the directory keeps its clock, and a new one gets the real one.
    Raises ForeignDirectory, with a text for the operator, if Geminga may not open the directory. `new_id` is
    the id of a new record, if files of the bookie have one.
    """
    path = InstanceRecord.path
    stored = store.get(path)
    if stored is None:
        # Without this a damaged or foreign store would get a new identity, and the bookie's cookies would
        # then be refused.
        if not store.is_empty():
            raise ForeignDirectory(
                "the metadata directory holds data but no instance record: it was not written by this "
                "program, or it is damaged. Point the broker at another directory, or restore this one."
            )
        record = InstanceRecord(
            format_version=DIRECTORY_FORMAT_VERSION,
            instance_id=new_id or uuid.uuid4().hex,
            cluster=cluster,
            clock="real" if clock == "auto" else clock,
            created_ms=now_ms,
        )
        await store.put(path, encode(record), MUST_NOT_EXIST)
        return record
    record = decode(InstanceRecord, stored.value, path)
    if record.format_version > DIRECTORY_FORMAT_VERSION:
        raise ForeignDirectory(
            f"the data directory has format {record.format_version}, written by a newer version of this "
            f"program; this version reads up to format {DIRECTORY_FORMAT_VERSION}"
        )
    # Tenants' records name the clusters they are allowed on: under another name they would not be ours.
    if record.cluster != cluster:
        raise ForeignDirectory(
            f"the data directory belongs to cluster {record.cluster!r}, "
            f"but the broker is configured for {cluster!r}"
        )
    # Due times under a virtual clock are no points in real time: messages would come at once or never.
    if clock not in ("auto", record.clock):
        raise ForeignDirectory(
            f"the data directory was made for a {record.clock} clock and cannot be used with a {clock} one: "
            f"leave --clock out to open it, or name a new directory"
        )
    # The version goes up at the first start, before anything is written in the newer format: an older program
    # that is started by mistake afterwards refuses the directory.
    if record.format_version < DIRECTORY_FORMAT_VERSION:
        record = msgspec.structs.replace(record, format_version=DIRECTORY_FORMAT_VERSION)
        await store.put(path, encode(record), stored.version)
    return record


def starts_of(store: MetadataStore) -> Sequence[Start]:
    """The latest starts; () in a directory that was last opened by an earlier version."""
    stored = store.get(StartsRecord.path)
    return decode(StartsRecord, stored.value, StartsRecord.path).starts if stored is not None else ()


def new_start_id() -> str:
    return secrets.token_hex(8)


def with_new_start(starts: Sequence[Start], id_: str, found_changes: int) -> list[Start]:
    """The starts with this one, at which the metadata was opened with so many changes."""
    return [*starts, Start(id_, found_changes)][-STARTS_MAX:]


async def record_starts(store: MetadataStore, starts: Sequence[Start]) -> None:
    """Durable on return."""
    stored = store.get(StartsRecord.path)
    version = stored.version if stored is not None else MUST_NOT_EXIST
    await store.put(StartsRecord.path, encode(StartsRecord(starts=list(starts))), version)
