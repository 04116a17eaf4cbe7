"""What the pipeline's commands share: a session for those who ask for one, and output that is whole."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from geminga.cli.main import Parser

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


def write_tables(directory: str, tables: dict[str, pa.Table]) -> None:
    """Write `NAME.parquet` for each; the directory appears when all of it is there.

    Raises `StorageError`, also if it exists already.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from geminga.disk import RealDisk
    from geminga.errors import StorageError

    disk, directory = RealDisk(), os.path.abspath(directory)
    if disk.exists(directory):
        raise StorageError(f"{directory} exists already; name a new directory")
    part = directory + ".part"
    disk.make_directory(part)
    for name, table in tables.items():
        data = pa.BufferOutputStream()
        pq.write_table(table, data, compression="zstd", write_page_checksum=True)
        disk.replace_file(os.path.join(part, f"{name}.parquet"), data.getvalue().to_pybytes())
    disk.rename(part, directory)
