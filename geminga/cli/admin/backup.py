"""`geminga backup DIR`: a consistent copy of a running broker's data."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from geminga.cli.arguments.options import add_web_url, counted
from geminga.cli.arguments.parser import EXIT_FAILED, EXIT_OK, Parser
from geminga.cli.client.addresses import standalone

SECONDS_MAX = 24 * 3600
MIB = 1024 * 1024


def run(kind: type[Parser], arguments: Sequence[str]) -> int:
    from geminga.cli.admin.admin_http import Admin, RequestFailed

    parser = kind(
        prog="geminga backup",
        description="Make a consistent copy of a running broker's data, on the broker's machine. "
        "'cp -a' of a running broker's files does not: see docs/backup.md.",
    )
    parser.add_argument("directory", metavar="DIR", help="a directory that is not there yet, or an empty one")
    add_web_url(parser)
    flags = parser.parse_strictly(arguments)
    directory = os.path.abspath(flags.directory)
    try:
        made = Admin(flags.url, seconds_max=SECONDS_MAX).call(
            "POST", "/geminga/backup", {"directory": directory}
        )
    except RequestFailed as error:
        print(f"geminga backup: {error}", file=sys.stderr)
        return EXIT_FAILED
    size_mib = made["bytes"] / MIB
    print(
        f"{made['directory']}: {counted(made['files'], 'file')}, {size_mib:.1f} MiB, {made['seconds']:.1f} s"
    )
    start = [standalone("--data-dir"), made["directory"]]
    start += [f"--set {key}={value}" for key, value in made["settings"].items()]
    print("start a broker on it with:", *start)
    return EXIT_OK
