"""What an export's manifest says: which files belong to it, how far each topic was read, its schemas.

It is written last, so what it does not name does not belong to the export. docs/pipeline-export.md.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from geminga.pipeline.columns.message_id import MessageId, parse
from geminga.pipeline.errors import PipelineError
from geminga.pipeline.values.schemas import TopicSchema

MANIFEST: Final = "_manifest.json"
"""Its name. Spark and pyarrow pass over names that begin with an underscore."""
FORMAT: Final = "geminga-export"
VERSION: Final = 1
_BAD_JSON: Final = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)


class NoExport(PipelineError):
    """A directory that holds no export, or one that is damaged or of another making."""


@dataclass(frozen=True)
class ExportedFile:
    path: str
    """Below the export's directory, with slashes."""
    size_bytes: int
    crc32c: int
    rows: int
    topics: Mapping[str, int]
    """Rows of each topic, partitions by their own names."""


@dataclass(frozen=True)
class Run:
    """One call that added to the export."""

    number: int
    at_ms: int
    files: tuple[ExportedFile, ...]

    @property
    def directory(self) -> str:
        return f"run={self.number:06d}"

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


@dataclass(frozen=True)
class ExportedTopic:
    partitions: int
    """0: it is not partitioned."""
    offsets: Mapping[str, MessageId]
    """Of each partition: the id of the first message that was not read."""
    schemas: tuple[tuple[bytes, TopicSchema], ...] = ()
    """Versions as the registry numbers them, oldest first."""


@dataclass(frozen=True)
class Manifest:
    export_id: str
    """Made once, for all runs: what a replay names its producers after."""
    topics: Mapping[str, ExportedTopic] = field(default_factory=dict)
    """Partitioned ones as one."""
    runs: tuple[Run, ...] = ()

    @property
    def files(self) -> list[ExportedFile]:
        return [file for run in self.runs for file in run.files]

    def rows_by_topic(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for file in self.files:
            for topic, rows in file.topics.items():
                found[topic] = found.get(topic, 0) + rows
        return found


def encode(manifest: Manifest) -> bytes:
    topics = {
        name: {
            "partitions": topic.partitions,
            "offsets": {part: str(message_id) for part, message_id in topic.offsets.items()},
            "schemas": [_schema_out(version, schema) for version, schema in topic.schemas],
        }
        for name, topic in manifest.topics.items()
    }
    whole = {
        "format": FORMAT,
        "version": VERSION,
        "id": manifest.export_id,
        "topics": topics,
        "runs": [asdict(run) for run in manifest.runs],
    }
    return json.dumps(whole, indent=1).encode()


def decode(data: bytes, name: str) -> Manifest:
    """`name` identifies the file in errors. Raises `NoExport`."""
    try:
        found: Any = json.loads(data)
        if found.get("format") != FORMAT:
            raise NoExport(f"{name} is not the manifest of an export; name a directory that export wrote")
        if found["version"] != VERSION:
            raise NoExport(f"{name} is of version {found['version']}; this program reads version {VERSION}")
        return Manifest(
            str(found["id"]),
            {name: _topic_in(topic) for name, topic in found["topics"].items()},
            tuple(_run_in(run) for run in found["runs"]),
        )
    except NoExport:
        raise
    except (*_BAD_JSON, PipelineError) as error:
        raise NoExport(
            f"{name} is damaged ({type(error).__name__}: {error}); take it from a copy, or export again"
        ) from None


def _schema_out(version: bytes, schema: TopicSchema) -> dict[str, Any]:
    return {
        "version": version.hex(),
        "kind": schema.kind,
        "definition": base64.b64encode(schema.definition).decode(),
        "properties": dict(schema.properties),
    }


def _topic_in(given: Mapping[str, Any]) -> ExportedTopic:
    schemas = tuple(
        (
            bytes.fromhex(one["version"]),
            TopicSchema(one["kind"], base64.b64decode(one["definition"]), dict(one["properties"])),
        )
        for one in given["schemas"]
    )
    offsets = {part: parse(text) for part, text in given["offsets"].items()}
    return ExportedTopic(int(given["partitions"]), offsets, schemas)


def _run_in(given: Mapping[str, Any]) -> Run:
    files = tuple(
        ExportedFile(
            str(one["path"]),
            int(one["size_bytes"]),
            int(one["crc32c"]),
            int(one["rows"]),
            {str(topic): int(rows) for topic, rows in one["topics"].items()},
        )
        for one in given["files"]
    )
    return Run(int(given["number"]), int(given["at_ms"]), files)
