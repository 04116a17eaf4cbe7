"""Files of a broker by URL, for what reads them through a `storage.disk.Disk`: a data directory on S3."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final, cast

import pyarrow as pa

from geminga.errors import StorageError
from geminga.limits import MIB
from geminga.pipeline.files.files import Files
from geminga.pipeline.files.locations import FILE, parse
from geminga.storage.disk import Disk, File, RealDisk

BLOCK_BYTES: Final = 4 * MIB
BLOCKS_MAX: Final = 4
"""At hand of one file: its records are read in small pieces, mostly one behind the other."""


def disk_by_url(files: Files) -> Disk:
    """A disk whose paths may be URLs, and only read; those of this machine are read as any disk does."""
    return cast("Disk", _DiskByUrl(files))


class _DiskByUrl:
    """The part of a `Disk` that reads."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._here = RealDisk()

    def open(self, url: str) -> File:
        """For reading. Raises `StorageError`."""
        if parse(url).scheme == FILE:
            return self._here.open(url)
        return cast("File", StoredFile(self._files.open(url), url))

    def exists(self, url: str) -> bool:
        return self._files.exists(url)

    def list(self, url: str) -> list[str]:
        """Names in a directory, sorted."""
        return [one.name for one in self._files.list(url)]


class StoredFile:
    """The part of a `File` that reads."""

    def __init__(self, source: pa.NativeFile, url: str) -> None:
        self.path: Final = url
        self._source = source
        self._size_bytes = int(source.size())
        self._blocks: OrderedDict[int, bytes] = OrderedDict()

    def size(self) -> int:
        return self._size_bytes

    def pread(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes from `offset`; shorter only at the end of the file. Raises `StorageError`."""
        end = min(offset + length, self._size_bytes)
        parts = []
        while offset < end:
            begin = offset % BLOCK_BYTES
            part = self._block(offset // BLOCK_BYTES)[begin : begin + end - offset]
            parts.append(part)
            offset += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _block(self, number: int) -> bytes:
        found = self._blocks.pop(number, None)
        if found is None:
            try:
                at = number * BLOCK_BYTES
                found = self._source.read_at(min(BLOCK_BYTES, self._size_bytes - at), at)
            except (OSError, pa.ArrowException) as error:
                raise StorageError(f"{self.path} cannot be read: {error}") from None
            while len(self._blocks) >= BLOCKS_MAX:
                self._blocks.popitem(last=False)
        self._blocks[number] = found
        return found

    def close(self) -> None:
        self._source.close()

    def __enter__(self) -> StoredFile:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
