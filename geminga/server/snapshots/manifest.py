"""`snapshot.json`: what a snapshot is of, and a checksum of each of its files."""

from __future__ import annotations

import os
import zlib
from typing import Final, Literal

import msgspec

from geminga.errors import Conflict
from geminga.limits import MIB
from geminga.metadata.instance import DIRECTORY_FORMAT_VERSION
from geminga.server.snapshots.swap import PARTS
from geminga.storage.disk import RealDisk

FORMAT_VERSION: Final = 1
MANIFEST: Final = "snapshot.json"
DATA: Final = "data"
"""The directory of the copied files, beside the manifest."""
PIECE_BYTES: Final = MIB


class SnapshotFile(msgspec.Struct, frozen=True):
    path: str
    """Below `data`, with slashes."""
    bytes: int
    crc32: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    format_version: int
    geminga: str
    """The version of the program that has written it."""
    directory_format: int
    cluster: str
    clock: Literal["real", "virtual"]
    saved_ms: int
    """By the machine's clock."""
    shown_ms: int
    """What the broker's clock showed."""
    directories: list[str]
    files: list[SnapshotFile]

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


class _Version(msgspec.Struct):
    format_version: int


def read_manifest(disk: RealDisk, directory: str) -> Manifest:
    """Blocking. Raises Conflict, which says what the directory is and what to do instead."""
    path = os.path.join(directory, MANIFEST)
    if not os.path.isdir(directory):
        raise Conflict(f"{directory} is not a directory; name one that 'geminga snapshot save' has made")
    if not disk.exists(path):
        if disk.exists(os.path.join(directory, PARTS[0])):
            raise Conflict(
                f"{directory} is no snapshot but a data directory, or a copy of one: start a broker on it "
                "with --data-dir"
            )
        raise Conflict(
            f"{directory} is no snapshot, or only a part of one: it has no {MANIFEST}. Copy all of it, or "
            "make a new one with 'geminga snapshot save DIR'"
        )
    content = disk.read_file(path)
    try:
        version = msgspec.json.decode(content, type=_Version).format_version
        if version > FORMAT_VERSION:
            raise Conflict(
                f"{directory} has format {version}, written by a newer version of this program; this version "
                f"reads up to format {FORMAT_VERSION}: restore it with the version that has written it"
            )
        manifest = msgspec.json.decode(content, type=Manifest)
    except msgspec.MsgspecError as error:
        raise Conflict(
            f"{path} cannot be read: {error}. Copy the snapshot again, or make a new one"
        ) from None
    for name in (*manifest.directories, *(file.path for file in manifest.files)):
        if name.split("/")[0] not in PARTS or os.path.normpath(name) != name or "\0" in name:
            raise Conflict(f"{path} names {name!r}, which is no file of a snapshot; make a new one")
    return manifest


def check_fits(manifest: Manifest, directory: str, *, cluster: str, clock: str) -> None:
    """Raise Conflict if a broker of this cluster and clock cannot open it. Pure."""
    if manifest.directory_format > DIRECTORY_FORMAT_VERSION:
        raise Conflict(
            f"{directory} holds a data directory of format {manifest.directory_format}, written by Geminga "
            f"{manifest.geminga}; this version reads up to format {DIRECTORY_FORMAT_VERSION}: use that "
            "version, or a newer one"
        )
    if manifest.cluster != cluster:
        raise Conflict(
            f"{directory} is of cluster {manifest.cluster!r}, and this broker is of {cluster!r}: start a "
            f"broker with --set clusterName={manifest.cluster} on a new data directory, and restore it there"
        )
    if manifest.clock != clock:
        raise Conflict(
            f"{directory} was saved under a {manifest.clock} clock, and this broker has a {clock} one: start "
            f"a broker with --clock {manifest.clock} on a new data directory, and restore it there"
        )


def list_files(disk: RealDisk, root: str) -> tuple[list[str], list[SnapshotFile]]:
    """All directories and files below `root`, with their checksums. Blocking: reads everything."""
    directories: list[str] = []
    files: list[SnapshotFile] = []
    waiting = list(reversed(PARTS))
    while waiting:
        name = waiting.pop()
        directories.append(name)
        for inner in disk.list(os.path.join(root, name)):
            path = f"{name}/{inner}"
            full = os.path.join(root, path)
            if os.path.isdir(full):
                waiting.append(path)
            else:
                size_bytes, crc32 = _checksum(disk, full)
                files.append(SnapshotFile(path, size_bytes, crc32))
    return directories, files


def write_manifest(disk: RealDisk, directory: str, manifest: Manifest) -> None:
    """Durable on return. Blocking."""
    content = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    disk.replace_file(os.path.join(directory, MANIFEST), content + b"\n")


def copy_checked(disk: RealDisk, manifest: Manifest, directory: str, target: str) -> None:
    """Copy the files below `directory` to `target`, an empty directory; durable on return. Blocking. Raises
    Conflict for a file that is missing, or is not as it was saved.
    """
    for name in manifest.directories:
        disk.make_directory(os.path.join(target, name))
    for file in manifest.files:
        source = os.path.join(directory, DATA, file.path)
        if not os.path.isfile(source):
            raise _damaged(source, "is missing")
        size_bytes = disk.size_of(source)
        if size_bytes != file.bytes:
            raise _damaged(source, f"has {size_bytes} bytes, and had {file.bytes}")
        copy = disk.create(os.path.join(target, file.path))
        try:
            crc32 = 0
            for piece in disk.read_pieces(source, PIECE_BYTES):
                crc32 = zlib.crc32(piece, crc32)
                copy.append(piece)
            if crc32 != file.crc32:
                raise _damaged(source, "has other bytes than it was saved with")
            copy.sync()
        finally:
            copy.close()
    for name in manifest.directories:
        disk.sync_directory(os.path.join(target, name))


def _damaged(path: str, what: str) -> Conflict:
    return Conflict(f"{path} {what}: the snapshot is half-copied or was changed; copy all of it again")


def _checksum(disk: RealDisk, path: str) -> tuple[int, int]:
    """Size and CRC-32 of a file."""
    size_bytes = crc32 = 0
    for piece in disk.read_pieces(path, PIECE_BYTES):
        crc32 = zlib.crc32(piece, crc32)
        size_bytes += len(piece)
    return size_bytes, crc32
