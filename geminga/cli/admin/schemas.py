"""`geminga schemas`: the schemas of topics, with pulsar-admin's verbs and flags."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from geminga.cli.admin.admin_http import Admin, RequestFailed, Verb, flag, run_group, topic_path
from geminga.cli.arguments.parser import Parser
from geminga.errors import StorageError
from geminga.storage.disk import RealDisk

FILE = flag(
    "--filename",
    "-f",
    required=True,
    help='a file of JSON: {"type": "AVRO", "schema": "...", "properties": {}}',
)


def _path(topic: str) -> str:
    return topic_path(topic).replace("/persistent/", "/schemas/", 1)


def _get(admin: Admin, flags: Any) -> Any:
    if flags.all:
        return admin.call("GET", _path(flags.subject) + "/schemas")["getSchemaResponses"]
    version = "" if flags.version is None else f"/{flags.version}"
    return admin.call("GET", f"{_path(flags.subject)}/schema{version}")


def _given(flags: Any) -> Any:
    try:
        given = json.loads(RealDisk().read_file(flags.filename))
    except StorageError as error:
        raise RequestFailed(str(error)) from None
    except ValueError as error:
        raise RequestFailed(f"{flags.filename}: {error}") from None
    if isinstance(given, dict) and isinstance(given.get("schema"), dict | list):
        given["schema"] = json.dumps(given["schema"])
    return given


def _upload(admin: Admin, flags: Any) -> Any:
    return admin.call("POST", _path(flags.subject) + "/schema", _given(flags))


def _compatibility(admin: Admin, flags: Any) -> Any:
    return admin.call("POST", _path(flags.subject) + "/compatibility", _given(flags))


def _delete(admin: Admin, flags: Any) -> Any:
    return admin.call("DELETE", _path(flags.subject) + "/schema", force=flags.force)


VERBS = {
    "get": Verb(
        "show a topic's schema",
        "TOPIC",
        (
            flag("--version", "-v", type=int, default=None, help="this version instead of the newest"),
            flag("--all-version", "-a", dest="all", action="store_true", help="all versions"),
        ),
        _get,
    ),
    "upload": Verb("add a version of a topic's schema", "TOPIC", (FILE,), _upload),
    "delete": Verb(
        "delete a topic's schema; versions are not used again",
        "TOPIC",
        (flag("--force", "-f", action="store_true", default=None, help="forget all versions, begin at 0"),),
        _delete,
    ),
    "compatibility": Verb("say whether a schema could be added", "TOPIC", (FILE,), _compatibility),
}


def run(kind: type[Parser], arguments: Sequence[str]) -> int:
    return run_group(kind, "schemas", VERBS, arguments)
