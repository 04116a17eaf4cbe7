"""The bookie's lists of directories, recorded at the first start with other ones than the default."""

from __future__ import annotations

from geminga.metadata.instance import DIRECTORY_FORMAT_VERSION
from geminga.metadata.node import MUST_NOT_EXIST, Put
from geminga.metadata.records import BookieDirectoriesRecord, InstanceRecord, decode, encode
from geminga.metadata.store import MetadataStore


def recorded_directories(store: MetadataStore) -> BookieDirectoriesRecord | None:
    """None if there is no record: then it is the default, or the data directory is new."""
    path = BookieDirectoriesRecord.path
    stored = store.get(path)
    return decode(BookieDirectoriesRecord, stored.value, path) if stored is not None else None


async def record_directories(
    store: MetadataStore, instance: InstanceRecord, directories: BookieDirectoriesRecord
) -> None:
    """For good; durable on return. The instance's format is raised with it: a version of this program that
    does not know the record must not open the data directory, it would not find the entries.
    """
    newer = InstanceRecord(
        format_version=DIRECTORY_FORMAT_VERSION,
        instance_id=instance.instance_id,
        cluster=instance.cluster,
        clock=instance.clock,
        created_ms=instance.created_ms,
    )
    await store.transact(
        [
            Put(InstanceRecord.path, encode(newer)),
            Put(BookieDirectoriesRecord.path, encode(directories), MUST_NOT_EXIST),
        ]
    )
