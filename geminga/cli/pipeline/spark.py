"""What the pipeline's commands share: a session for those who ask for one, and output that is whole."""

from __future__ import annotations

import os
import shutil
import sys
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
    """A directory that appears under its name when all is in it: on leaving the block, unless an exception
    ends it.
    """

    def __init__(self, directory: str) -> None:
        """Raises `StorageError` if it exists already."""
        from geminga.errors import StorageError
        from geminga.storage.disk import RealDisk

        self._disk = RealDisk(for_owner=False)
        self._final = os.path.abspath(directory)
        self.path = self._final + ".part"
        """Where to write meanwhile."""
        for path in (self._final, self.path):
            if self._disk.exists(path):
                raise StorageError(f"{path} exists already; name a new directory, or take it away")

    def __enter__(self) -> WholeDirectory:
        self._disk.make_directory(self.path)
        return self

    def write(self, name: str, table: pa.Table) -> None:
        """As `name`.parquet."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        data = pa.BufferOutputStream()
        pq.write_table(table, data, compression="zstd", write_page_checksum=True)
        self._disk.replace_file(os.path.join(self.path, f"{name}.parquet"), data.getvalue().to_pybytes())

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._disk.rename(self.path, self._final)
        else:
            shutil.rmtree(self.path, ignore_errors=True)
