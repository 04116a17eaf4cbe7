"""`geminga pipeline package`: what the workers of a cluster need, in an archive. docs/pipeline-cluster.md."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from geminga.cli.arguments.parser import EXIT_OK, Parser
from geminga.limits import MIB


def run(parser: Parser, arguments: Sequence[str]) -> int:
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="a name that ends in .zip (default: geminga-VERSION-PYTHON-SYSTEM.zip in this directory)",
    )
    flags = parser.parse_strictly(arguments)
    if flags.output and not flags.output.endswith(".zip"):
        parser.error(f"--output {flags.output}: Spark unpacks it by its name, so let it end in .zip")
    from geminga.pipeline.spark.archive import archive_name, usage_of, write_archive

    path = Path(flags.output or archive_name())
    size = write_archive(path)
    print(f"{path}: {size / MIB:.0f} MiB, for workers with {' and '.join(_for())}")
    print()
    print(usage_of(os.path.abspath(path)))
    return EXIT_OK


def _for() -> tuple[str, str]:
    return f"Python {sys.version_info[0]}.{sys.version_info[1]}", sysconfig.get_platform()
