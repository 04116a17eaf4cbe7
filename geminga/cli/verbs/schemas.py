"""`geminga schemas`: the schemas of topics."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from geminga.cli.admin.admin_http import Admin, RequestFailed
from geminga.cli.verbs.rows.running import run_group
from geminga.cli.verbs.rows.verb import Flags, Verb, flag, path_of, switch
from geminga.errors import StorageError
from geminga.storage.disk import RealDisk

SCHEMAS = "schemas/{of_topic}"
FILE = flag(
    "--filename",
    "-f",
    required=True,
    help='a file of JSON: {"type": "AVRO", "schema": "...", "properties": {}}',
)


def _get(admin: Admin, flags: Flags) -> Any:
    path = path_of(SCHEMAS, flags)
    if flags.all:
        return admin.call("GET", f"{path}/schemas")["getSchemaResponses"]
    version = "" if flags.version is None else f"/{flags.version}"
    return admin.call("GET", f"{path}/schema{version}")


def _given(flags: Flags) -> Any:
    try:
        given = json.loads(RealDisk(for_owner=False).read_file(flags.filename))
    except StorageError as error:
        raise RequestFailed(str(error)) from None
    except ValueError as error:
        raise RequestFailed(f"{flags.filename}: {error}") from None
    if isinstance(given, dict) and isinstance(given.get("schema"), dict | list):
        given["schema"] = json.dumps(given["schema"])
    return given


def _no_classes(admin: Admin, flags: Flags) -> Any:
    raise RequestFailed(
        f"schemas of Java classes cannot be read here: write the AVRO definition of {flags.classname} to a "
        "file and use 'upload --filename'"
    )


VERBS = {
    "get": Verb(
        "show a topic's schema",
        "GET",
        SCHEMAS,
        (
            flag("--version", "-v", type=int, default=None, help="this version instead of the newest"),
            switch("--all-version", "-a", dest="all", help="all versions"),
        ),
        run=_get,
    ),
    "upload": Verb("add a version of a topic's schema", "POST", f"{SCHEMAS}/schema", (FILE,), body=_given),
    "delete": Verb(
        "delete a topic's schema; versions are not used again",
        "DELETE",
        f"{SCHEMAS}/schema",
        (switch("--force", "-f", default=None, help="forget all versions, begin at 0"),),
        {"force": "force"},
    ),
    "compatibility": Verb(
        "say whether a schema could be added", "POST", f"{SCHEMAS}/compatibility", (FILE,), body=_given
    ),
    "metadata": Verb("show the versions of a topic's schema", "GET", f"{SCHEMAS}/metadata"),
    "extract": Verb(
        "not here: take the schema from a Java class",
        "POST",
        f"{SCHEMAS}/schema",
        (
            flag("--jar", "-j", required=True),
            flag("--classname", "-c", required=True),
            flag("--type", "-t", required=True),
            switch("--always-allow-null", "-a"),
            switch("--dry-run", "-n"),
        ),
        run=_no_classes,
    ),
}
run = partial(run_group, "schemas", VERBS)
