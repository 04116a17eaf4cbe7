"""Files by URL, read and written through pyarrow's file systems: by the driver, by tasks, without Spark."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyarrow import fs

from geminga.errors import StorageError
from geminga.pipeline.errors import PipelineError
from geminga.pipeline.files.locations import (
    AZURE,
    FILE,
    GOOGLE,
    HDFS,
    KNOWN_SCHEMES,
    S3,
    Location,
    parse,
    s3_arguments,
)
from geminga.storage.disk import RealDisk

_PARTIAL: Final = ".tmp"
"""What the name of a file ends with that is not whole, where files can be renamed."""
_SAID_MAX: Final = 300
"""Letters of another's error: looking for libhdfs takes thousands to tell."""
_S3_CREDENTIALS: Final = (
    "give credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment of every machine, or "
    "fs.s3a.access.key and fs.s3a.secret.key"
)
_S3_ENVIRONMENT: Final = {
    "fs.s3a.endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "fs.s3a.endpoint.region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
}
"""Environment variables for settings that are not given; pyarrow reads only those of credentials itself."""
_ADVICE: Final = (
    ("NO_SUCH_BUCKET", "there is no such bucket: correct the name, or create it"),
    ("ACCESS_DENIED", _S3_CREDENTIALS),
    ("HTTP status 403", _S3_CREDENTIALS),
    ("HTTP response code 403", _S3_CREDENTIALS),
    ("INVALID_ACCESS_KEY_ID", _S3_CREDENTIALS),
    ("SIGNATURE_DOES_NOT_MATCH", _S3_CREDENTIALS),
    ("HTTP response code 301", "the bucket is in another region: give fs.s3a.endpoint.region or AWS_REGION"),
    ("NETWORK_CONNECTION", "nothing answers: correct fs.s3a.endpoint or AWS_ENDPOINT_URL"),
    (
        "libhdfs",
        "install Hadoop's client on every machine, set HADOOP_HOME, and CLASSPATH to what `hadoop classpath "
        "--glob` prints",
    ),
    (
        "libjvm",
        "HDFS is reached through Java: set JAVA_HOME, HADOOP_HOME, and CLASSPATH to what `hadoop classpath "
        "--glob` prints, on every machine",
    ),
)
"""Words in errors of file systems, and what to do then."""


class NotThere(StorageError):
    """No file or directory of that name."""


class Listed(NamedTuple):
    """A file or directory in a directory."""

    name: str
    """Below the directory that was listed, with slashes."""
    size_bytes: int
    is_directory: bool


@dataclass(frozen=True)
class Files:
    """Every file system, with these settings. Travels to workers.

    A URL is a path, or SCHEME://AUTHORITY/PATH as Hadoop writes it. Every method raises `StorageError`, or
    `PipelineError` for a URL that means nothing and a file system that is not known.
    """

    settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    """By Hadoop's names, such as fs.s3a.endpoint; what is not there comes from the environment."""

    def open(self, url: str) -> pa.NativeFile:
        """For reading, anywhere in it. `NotThere` if there is no such file."""
        where, system, path = self._at(url)
        with _in_words(where, "read"):
            return system.open_input_file(path)

    def read(self, url: str) -> bytes:
        """All of a file. `NotThere` if there is none."""
        with self.open(url) as file, _in_words(parse(url), "read"):
            data: bytes = file.read()
            return data

    def write(self, url: str, data: bytes) -> None:
        """Write a file, or replace one atomically: readers see the old content or the new."""
        where = parse(url)
        if where.scheme == FILE:
            disk = RealDisk(for_owner=False)
            disk.make_directory(os.path.dirname(where.path))
            disk.replace_file(where.path, data)
            return
        with self.create(url) as file:
            file.write(data)

    @contextlib.contextmanager
    def create(self, url: str) -> Iterator[pa.NativeFile]:
        """A new file to write from its begin, in directories that are made if need be.

        On leaving the block it is whole, has its name and is as durable as the file system makes it; on this
        machine `sync_directory` of its directory is still to come. After an exception in the block there
        is no such file. A process that is killed leaves none either, or one with another name.
        """
        where, system, path = self._at(url)
        renames = where.scheme in (FILE, HDFS)
        written = path + _PARTIAL if renames else path
        with _in_words(where, "written"):
            if renames:
                system.create_dir(os.path.dirname(path), recursive=True)
            try:
                with system.open_output_stream(written) as file:
                    yield file
            except BaseException:
                # pyarrow completes a file as it closes it, whatever it is closed for.
                with contextlib.suppress(OSError, pa.ArrowException):
                    system.delete_file(written)
                raise
        if where.scheme == FILE:
            self._sync(written)
        if renames:
            with _in_words(where, "written"):
                system.move(written, path)

    def list(self, url: str, *, recursive: bool = False) -> list[Listed]:
        """What is below a directory, by name; nothing if it is not there."""
        where, system, path = self._at(url)
        with _in_words(where, "listed"):
            found = system.get_file_info(fs.FileSelector(path, recursive=recursive, allow_not_found=True))
        start = len(path.rstrip("/")) + 1
        return sorted(
            Listed(one.path[start:], one.size or 0, one.type == fs.FileType.Directory) for one in found
        )

    def size_of(self, url: str) -> int | None:
        """Of a file in bytes; None if there is no such file."""
        found = self._info(url)
        return found.size if found.type == fs.FileType.File else None

    def is_directory(self, url: str) -> bool:
        return bool(self._info(url).type == fs.FileType.Directory)

    def exists(self, url: str) -> bool:
        """A file, or a directory; in an object store a directory is there if anything is below it."""
        return bool(self._info(url).type != fs.FileType.NotFound)

    def delete(self, url: str) -> None:
        """A file. `NotThere` if there is none."""
        where, system, path = self._at(url)
        with _in_words(where, "deleted"):
            system.delete_file(path)

    def delete_tree(self, url: str) -> None:
        """A directory and all below it; nothing happens if it is not there."""
        where, system, path = self._at(url)
        with _in_words(where, "deleted"), contextlib.suppress(FileNotFoundError):
            system.delete_dir(path)

    def can_rename(self, url: str) -> bool:
        """Whether a directory gets another name at once, with all that is in it."""
        return parse(url).scheme in (FILE, HDFS)

    def rename(self, old: str, new: str) -> None:
        """A directory, to a name that is not taken. Only where `can_rename`."""
        where, system, path = self._at(old)
        with _in_words(where, f"renamed to {new}"):
            system.move(path, self._at(new)[2])

    def make_directory(self, url: str) -> None:
        """With its parents; nothing happens where it is there, and in an object store, which has none."""
        where, system, path = self._at(url)
        if self.can_rename(url):
            with _in_words(where, "made"):
                system.create_dir(path, recursive=True)

    def sync_directory(self, url: str) -> None:
        """Names in it are durable on return. Only this machine's file systems need to be asked."""
        where = parse(url)
        if where.scheme == FILE:
            RealDisk().sync_directory(where.path)

    def _info(self, url: str) -> fs.FileInfo:
        where, system, path = self._at(url)
        with _in_words(where, "looked at"):
            return system.get_file_info(path)

    def _at(self, url: str) -> tuple[Location, fs.FileSystem, str]:
        """The file system of a URL, and what it calls the file."""
        where = parse(url)
        if where.scheme == FILE:
            return where, _LOCAL, where.path
        with _in_words(where, "reached"):
            system = _system(
                where.scheme, where.written, where.authority, tuple(sorted(self.settings.items()))
            )
        return where, system, _path(where)

    @staticmethod
    def _sync(path: str) -> None:
        file = RealDisk().open(path)
        try:
            file.sync()
        finally:
            file.close()


_LOCAL: Final = fs.LocalFileSystem()


def _path(where: Location) -> str:
    if where.scheme == HDFS:
        return f"/{where.path}"
    container = where.authority.partition("@")[0] if where.scheme == AZURE else where.authority
    return f"{container}/{where.path}".strip("/")


@functools.lru_cache(maxsize=16)
def _system(
    scheme: str, written: str, authority: str, settings: tuple[tuple[str, str], ...]
) -> fs.FileSystem:
    """One for each process: connections are kept in it."""
    known = dict(settings)
    if scheme == S3:
        return _s3(known, authority)
    if scheme == HDFS:
        host, _, port = authority.partition(":")
        at = f"{written}://{host}" if host and written != "hdfs" else host
        return fs.HadoopFileSystem(at or "default", int(port or 0))
    if scheme == AZURE:
        host = authority.partition("@")[2]
        return fs.AzureFileSystem(host.partition(".")[0], known.get(f"fs.azure.account.key.{host}"))
    if scheme == GOOGLE:
        return fs.GcsFileSystem()
    return _by_fsspec(written)


def _s3(settings: dict[str, str], bucket: str) -> fs.FileSystem:
    in_environment = {
        setting: next((os.environ[name] for name in names if os.environ.get(name)), "")
        for setting, names in _S3_ENVIRONMENT.items()
    }
    arguments = s3_arguments(in_environment | settings, bucket)
    if "region" not in arguments:
        # Which region a bucket is in Amazon tells everybody.
        with contextlib.suppress(OSError):
            arguments["region"] = fs.resolve_s3_region(bucket)
    return fs.S3FileSystem(**arguments)


def _by_fsspec(scheme: str) -> fs.FileSystem:
    try:
        import fsspec  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError:
        raise PipelineError(
            f"{scheme}: is no file system that is known here ({', '.join(KNOWN_SCHEMES)}); others are "
            "reached through fsspec: pip install fsspec, and its package for this one, on every machine"
        ) from None
    try:
        system: Any = fsspec.filesystem(scheme)
    except (ImportError, ValueError) as error:
        raise PipelineError(
            f"{scheme}: is no file system that is known here ({', '.join(KNOWN_SCHEMES)}), and fsspec says: "
            f"{error}"
        ) from None
    return fs.PyFileSystem(fs.FSSpecHandler(system))


@contextlib.contextmanager
def _in_words(where: Location, done: str) -> Iterator[None]:
    """An error of pyarrow becomes one of ours: a line that names the URL and says what to do about it."""
    try:
        yield
    except FileNotFoundError as error:
        raise _failed(where, done, error, NotThere) from None
    except (OSError, pa.ArrowException) as error:
        raise _failed(where, done, error, StorageError) from None


def _failed(
    where: Location, done: str, error: Exception, kind: Callable[[str], StorageError]
) -> StorageError:
    said = str(error).replace("\n", " ")
    advice = next((advice for word, advice in _ADVICE if word.lower() in said.lower()), "")
    said = said if len(said) <= _SAID_MAX else f"{said[:_SAID_MAX]}..."
    return kind(f"{where} cannot be {done}: {said}" + (f"; {advice}" if advice else ""))
