"""`geminga snapshot`: saves, restores, resets and seeds the state of a running broker."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from geminga.cli.arguments.options import add_web_url, counted
from geminga.cli.arguments.parser import EXIT_FAILED, EXIT_OK, Parser
from geminga.errors import StorageError

SECONDS_MAX = 24 * 3600
MIB = 1024 * 1024
PATH = "/geminga/snapshots"


def run(kind: type[Parser], arguments: Sequence[str]) -> int:
    from geminga.cli.admin.admin_http import Admin, RequestFailed

    flags = _parser(kind).parse_strictly(arguments)
    try:
        if flags.verb == "seed":
            return _seed(flags)
        admin = Admin(flags.url, seconds_max=SECONDS_MAX)
        if flags.verb == "save":
            saved = admin.call("POST", f"{PATH}/save", {"directory": os.path.abspath(flags.directory)})
            files, size_mib = counted(saved["files"], "file"), saved["bytes"] / MIB
            print(f"{saved['directory']}: {files}, {size_mib:.1f} MiB, {saved['seconds']:.2f} s")
            return EXIT_OK
        body = {"directory": os.path.abspath(flags.directory)} if flags.verb == "restore" else None
        # The broker redirects to the report, which it answers when it serves again.
        return _told(admin.call("POST", f"{PATH}/{flags.verb}", body)["last"])
    except RequestFailed as error:
        print(f"geminga snapshot: {error}", file=sys.stderr)
        return EXIT_FAILED


def _parser(kind: type[Parser]) -> Parser:
    parser = kind(
        prog="geminga snapshot",
        description="Save the state of a running broker as plain files, put it back, or empty the broker. A "
        "restore and a reset replace all data, and need a broker that was started with --chaos.",
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)

    def verb_named(name: str, text: str) -> argparse.ArgumentParser:
        made = verbs.add_parser(name, help=text, description=text)
        add_web_url(made)
        return made

    save = verb_named("save", "save the state in a new directory")
    restore = verb_named("restore", "replace the state by a saved one; clients reconnect")
    verb_named("reset", "remove all tenants, topics and messages; clients reconnect")
    for verb in (save, restore):
        verb.add_argument("directory", metavar="DIR", help="a directory on the broker's machine")
    seed = verb_named(
        "seed", "create what a file names, and publish its messages; works with any Pulsar broker"
    )
    seed.add_argument("file", metavar="FILE", help="TOML (.toml) or JSON lines (.jsonl): docs/snapshots.md")
    return parser


def _seed(flags: argparse.Namespace) -> int:
    from geminga.cli.admin.admin_http import Admin
    from geminga.cli.client.errors import ClientError
    from geminga.cli.seeding.seed_file import SeedError, parse_seed
    from geminga.cli.seeding.seeding import create, publish
    from geminga.cli.show.progress import Progress
    from geminga.storage.disk import RealDisk

    try:
        seed = parse_seed(flags.file, RealDisk(for_owner=False).read_file(flags.file))
        create(seed, Admin(flags.url))
        with Progress("published") as progress:
            publish(seed, flags.url, progress.step)
    except (SeedError, ClientError, StorageError) as error:
        print(f"geminga snapshot: {error}", file=sys.stderr)
        return EXIT_FAILED
    made = ((len(seed.namespaces), "namespace"), (len(seed.topics), "topic"), (seed.messages, "message"))
    print(f"{flags.file}: {', '.join(counted(number, what) for number, what in made)}")
    return EXIT_OK


def _told(last: Mapping[str, Any]) -> int:
    name = f"restored {last['source']}" if last["what"] == "restore" else "reset"
    if last["outcome"] == "done":
        print(f"{name} in {last['seconds']:.2f} s")
        return EXIT_OK
    print(f"geminga snapshot: not {name}, the state from before is back: {last['reason']}", file=sys.stderr)
    return EXIT_FAILED
