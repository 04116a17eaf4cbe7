"""Each story is told right: alone, and all of them together on Spark."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from geminga.pipeline.audit.audit import audit_logs
from geminga.pipeline.audit.events import SCHEMA
from geminga.pipeline.audit.logs import Log
from geminga.pipeline.audit.report import WRONG, Report
from geminga.pipeline.audit.settings import AuditSettings
from tests.pipeline.audit.stories import STORIES, Story, files_of, topic_of
from tests.pipeline.conftest import Call

Told = tuple[dict[str, list[str]], dict[str, int]]


def written(directory: Path, number: int, story: Story) -> list[str]:
    paths = []
    for place, rows in enumerate(files_of(number, story)):
        paths.append(str(directory / f"{number:02}-{place}.parquet"))
        pq.write_table(pa.Table.from_pylist(rows, SCHEMA), paths[-1])
    return paths


def told(report: Report, number: int, story: Story) -> Told:
    """What a report says of this story's topic, as the story does."""
    topics = {topic for topic in report.totals["topic"].to_pylist() if topic.startswith(topic_of(number))}
    wrong: dict[str, list[str]] = defaultdict(list)
    for what in WRONG:
        for topic, _, _, entry, index in report.positions(what):
            if topic in topics:
                wrong[what].append(str(entry) if index < 0 else f"{entry}:{index}")
    rows = [row for row in report.totals.to_pylist() if row["topic"] in topics and "DLQ" not in row["topic"]]
    return dict(wrong), {name: sum(row[name] for row in rows) for name in story.counts}


def test_there_are_enough_of_them() -> None:
    assert len(STORIES) >= 40
    assert len({story.name.partition(":")[0] for story in STORIES}) >= 12
    assert len({story.name for story in STORIES}) == len(STORIES)


@pytest.mark.parametrize("number", range(len(STORIES)), ids=[story.name for story in STORIES])
def test_a_story_is_told_right(number: int, tmp_path: Path) -> None:
    story = STORIES[number]
    report = audit_logs([Log(path) for path in written(tmp_path, number, story)], story.settings)
    assert told(report, number, story) == (story.wrong, story.counts)


def test_the_command_leaves_out_what_is_malformed_and_draws_the_rest(tmp_path: Path, call: Call) -> None:
    rows = [*files_of(0, STORIES[1])[0], {"kind": "published", "time_ms": 1, "topic": "t"}]
    path, picture = tmp_path / "log.parquet", tmp_path / "audit.png"
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), path)
    code, _, err = call("audit", path, "--master", "none", "--settle", "0")
    assert code != 0
    assert "row 3, counted from 0" in err
    more = ("--leave-out-malformed", "--png", picture)
    code, out, err = call("audit", path, "--master", "none", "--settle", "0", *more)
    assert code == 1
    assert "lost: 7:0" in out
    assert "malformed events were left out (1)" in err
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_spark_tells_all_of_them_right(spark: Any, tmp_path: Path) -> None:
    from geminga.pipeline.spark.audit import audit

    together: dict[AuditSettings, list[int]] = defaultdict(list)
    for number, story in enumerate(STORIES):
        together[story.settings].append(number)
    for settings, numbers in together.items():
        paths = [path for number in numbers for path in written(tmp_path, number, STORIES[number])]
        report = audit(spark, paths, settings)
        plain = audit_logs(map(Log, paths), settings)
        assert report.totals.equals(plain.totals)
        assert report.minutes.equals(plain.minutes)
        for number in numbers:
            story = STORIES[number]
            assert told(report, number, story) == (story.wrong, story.counts), story.name
