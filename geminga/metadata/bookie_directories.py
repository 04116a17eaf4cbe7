"""The bookie's lists of directories, recorded at a first start with other directories than the default."""

from __future__ import annotations

from geminga.metadata.node import MUST_NOT_EXIST
from geminga.metadata.records import BookieDirectoriesRecord, decode, encode
from geminga.metadata.store import MetadataStore


def recorded_directories(store: MetadataStore) -> BookieDirectoriesRecord | None:
    """The lists; None without a record: the lists are the default ones, or the data directory is new."""
    path = BookieDirectoriesRecord.path
    stored = store.get(path)
    return decode(BookieDirectoriesRecord, stored.value, path) if stored is not None else None


async def record_directories(store: MetadataStore, directories: BookieDirectoriesRecord) -> None:
    """Record the lists for good; durable on return."""
    await store.put(BookieDirectoriesRecord.path, encode(directories), MUST_NOT_EXIST)
