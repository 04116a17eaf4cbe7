"""Shared by the pipeline's commands: a Spark session for those that need one, and output written whole."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from geminga.cli.arguments.parser import Parser

if TYPE_CHECKING:
    import pyarrow as pa

PLAIN = "none"


def add_master(parser: Parser) -> None:
    parser.add_argument(
        "--master",
        default="local[*]",
        help=f"Spark's master (default: local[*]); {PLAIN!r}: in this process, without Spark",
    )


def session(master: str) -> Any:
    """A Spark session; its workers get this Python and this package."""
    from geminga.pipeline.spark.pieces import started

    return started(master)


def tell(text: str) -> None:
    """Progress, on standard error."""
    print(text, file=sys.stderr)


class WholeDirectory:
    """A directory that is whole once the block was left: it appears under its name then. In an object store,
    which renames nothing, an empty `_SUCCESS` in it says so, as it does after Spark's own jobs.
    """

    def __init__(self, directory: str, settings: Mapping[str, str] | None = None) -> None:
        """`directory` may be a URL; `settings`: of its file system. Raises `StorageError` if it is
        there already.
        """
        from geminga.errors import StorageError
        from geminga.pipeline.files.files import Files
        from geminga.pipeline.files.locations import parse

        self._files = Files(settings or {})
        self._final = str(parse(directory)).rstrip("/")
        self._renames = self._files.can_rename(self._final)
        self.path = self._final + ".part" if self._renames else self._final
        """Where to write meanwhile."""
        for path in dict.fromkeys((self._final, self.path)):
            if self._files.exists(path) if self._renames else self._files.list(path):
                raise StorageError(f"{path} exists already; name a new directory, or take it away")

    def __enter__(self) -> WholeDirectory:
        if self._renames:
            self._files.make_directory(self.path)
        return self

    def write(self, name: str, table: pa.Table) -> None:
        """As `name`.parquet."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        from geminga.pipeline.files.locations import join

        data = pa.BufferOutputStream()
        pq.write_table(table, data, compression="zstd", write_page_checksum=True)
        self._files.write(join(self.path, f"{name}.parquet"), data.getvalue().to_pybytes())

    def keep_only(self, names: Iterable[str]) -> None:
        """Delete all other files of the workers: failed attempts wrote those."""
        from geminga.pipeline.files.locations import join

        kept = set(names)
        for one in self._files.list(self.path):
            if one.name not in kept:
                self._files.delete(join(self.path, one.name))
        self._files.sync_directory(self.path)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        from geminga.pipeline.files.locations import join

        if kind is not None:
            self._files.delete_tree(self.path)
        elif self._renames:
            self._files.rename(self.path, self._final)
        else:
            self._files.write(join(self.path, "_SUCCESS"), b"")
