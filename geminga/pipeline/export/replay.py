"""An export back into topics: partitions of topics, wherever the workers are. docs/pipeline-export.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from geminga.pipeline.export.manifest import ExportedFile, Manifest
from geminga.pipeline.export.output import load
from geminga.pipeline.export.plan import verify, whole_topic
from geminga.pipeline.export.replay_lane import Delivery, LaneSettings
from geminga.pipeline.export.replay_targets import Wanted, prepare
from geminga.pipeline.export.replaying import DONE, Job, replay_rows
from geminga.pipeline.export.stored_rows import rows_in_order
from geminga.pipeline.export.workers import Here, Progress, Workers
from geminga.pipeline.files.files import Files
from geminga.pipeline.files.locations import join, parse, without_settings
from geminga.pipeline.topics.options import parse_options

_SEND_TIMEOUT_MS = "20000"


@dataclass(frozen=True)
class Replayed:
    """What became of each partition: the columns of `replaying.DONE`."""

    table: pa.Table

    @property
    def rows(self) -> int:
        return sum(self.table.column("rows").to_pylist())

    @property
    def skipped(self) -> int:
        """That an earlier attempt had sent."""
        return sum(self.table.column("skipped").to_pylist())

    @property
    def exactly_once(self) -> bool:
        """Every broker involved deduplicates: a repeated attempt stored nothing twice."""
        return all(self.table.column("deduplicates").to_pylist())


class _Part(NamedTuple):
    """A partition of an exported topic."""

    topic: str
    urls: tuple[str, ...]
    """Of all files with rows of it."""


def replay(
    directory: str,
    options: Mapping[str, str],
    *,
    rename: Mapping[str, str] | None = None,
    only: Iterable[str] = (),
    namespace: str | None = None,
    subscriptions: Iterable[str] = (),
    delivery: str = Delivery.AUTO,
    shift_ms: int = 0,
    batch_rows: int = 0,
    rate: float | None = None,
    by_key: bool = False,
    append: bool = False,
    schemas: bool = True,
    name: str | None = None,
    workers: Workers | None = None,
    progress: Progress = lambda text: None,
) -> Replayed:
    """Send every message of an export again, to topics of the same names unless told otherwise.

    `directory`: a path, or a URL such as s3a://BUCKET/PATH. `options`: service.url, admin.url, compression,
    pendingMax, sendTimeoutMs, pulsar.client.*, and settings of file systems (fs.s3a.endpoint). Order is
    kept for each partition, and so for each key. `rate`: messages a second, all together; 0 or None: no
    limit. `name`: what producers are named after; the same name continues an earlier replay where the
    broker deduplicates. `workers`: none means this process. All files are checked before anything is sent;
    on return all is durable. Raises `PipelineError`, `CorruptData`, `StorageError`.
    """
    given, settings = without_settings(options)
    files, root = Files(settings), str(parse(directory))
    workers = workers or Here(progress)
    manifest = load(files, root)
    known = parse_options({"sendTimeoutMs": _SEND_TIMEOUT_MS} | given)
    wanted = Wanted(
        known.access,
        known.admin_url,
        dict(rename or {}),
        tuple(only),
        namespace,
        tuple(subscriptions),
        by_key,
        append,
        schemas,
    )
    sizes = [file.size_bytes for file in manifest.files]
    progress(f"checking {len(sizes)} files, {sum(sizes):,} bytes")
    workers.run("checking", manifest.files, partial(verify, files, root), sizes=sizes)
    prefix = name or f"replay-{manifest.export_id}" + (f"-{shift_ms}" if shift_ms else "")
    targets = prepare(manifest, wanted, prefix)
    parts = [part for part in _parts(manifest, root) if whole_topic(part.topic) in targets]
    if not parts:
        return Replayed(DONE.empty_table())
    job = Job(
        known.access,
        targets,
        prefix,
        LaneSettings(Delivery(delivery), known.compression, batch_rows, shift_ms),
        rate / min(len(parts), workers.side_by_side()) if rate else None,
        known.pending_max,
        known.send_timeout_s,
    )
    progress(f"{len(parts)} partitions to send to {known.access.service_url}")
    done = workers.run("sending", parts, partial(_send, files, job))
    table = pa.Table.from_pylist([row for rows in done for row in rows], DONE)
    return Replayed(table.sort_by([("source", "ascending"), ("target", "ascending")]))


def _parts(manifest: Manifest, root: str) -> list[_Part]:
    by_topic: dict[str, list[ExportedFile]] = {}
    for file in manifest.files:
        for topic in file.topics:
            by_topic.setdefault(topic, []).append(file)
    return [_Part(topic, tuple(join(root, file.path) for file in found)) for topic, found in by_topic.items()]


def _send(files: Files, job: Job, part: _Part) -> list[dict[str, Any]]:
    rows = rows_in_order(files, part.urls, part.topic)
    return [row for done in replay_rows(job, rows) for row in done.to_pylist()]
