"""Exports in an object store, with and without Spark: exact, after kills and beside other exports too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from geminga.pipeline.errors import PipelineError
from geminga.pipeline.export.exporting import export
from geminga.pipeline.export.manifest import MANIFEST, ExportedFile, Manifest, NoExport
from geminga.pipeline.export.output import Output, exported_files, load
from geminga.pipeline.export.replay import replay
from geminga.pipeline.files.files import Files
from geminga.pipeline.files.locations import join
from tests.e2e.broker_process import Endpoints
from tests.pipeline.conftest import Call, Topics
from tests.pipeline.files.s3_server import Store, s3_server

OUT = "s3a://bucket/backups/orders"


@pytest.fixture
def store() -> Iterator[Store]:
    with s3_server() as store:
        yield store


@pytest.fixture
def files(store: Store) -> Files:
    return Files(store.settings)


def names(store: Store) -> list[str]:
    """Objects of the export, without those that stand for directories."""
    return [key.removeprefix("backups/orders/") for key in sorted(store.objects) if not key.endswith("/")]


def options(broker: Endpoints, store: Store, **more: str) -> dict[str, str]:
    return {"service.url": broker.service_url, **store.settings, **more}


def test_files_of_an_object_store(files: Files, store: Store) -> None:
    files.write(join(OUT, "a b/é"), b"123")
    with files.create(join(OUT, "large")) as file:
        for _ in range(3):
            file.write(b"x" * 5_000_000)
    assert [(one.name, one.size_bytes) for one in files.list(OUT)] == [("a b", 0), ("large", 15_000_000)]
    assert files.list(OUT, recursive=True)[1].name == "a b/é"
    with files.open(join(OUT, "large")) as opened:
        assert opened.read_at(2, 14_999_999) == b"x"
    assert (files.exists(OUT), files.is_directory(OUT), files.exists(join(OUT, "b"))) == (True, True, False)
    files.delete_tree(join(OUT, "a b"))
    files.delete(join(OUT, "large"))
    assert names(store) == []


def test_a_run_that_fails_or_is_killed_leaves_nothing_that_counts(files: Files, store: Store) -> None:
    def begin(*, resume: bool) -> Output:
        return Output(files, OUT, resume=resume)

    def fail() -> None:
        with begin(resume=False) as output:
            files.write(join(output.staged, "a.parquet"), b"1")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert names(store) == []
    killed = begin(resume=False)
    killed.__enter__()
    files.write(join(killed.staged, "a.parquet"), b"1")
    with pytest.raises(PipelineError, match=r"exists already.*resume=True"):
        begin(resume=False)
    with pytest.raises(NoExport, match="holds no export"):
        load(files, OUT)
    with begin(resume=True) as output:
        assert names(store) == ["_lock"]
        output.commit(Manifest("id", {}, (output.run,)))
    assert names(store) == [MANIFEST]
    files.write("s3a://bucket/other/file", b"")
    with pytest.raises(PipelineError, match="exists already"):
        Output(files, "s3a://bucket/other", resume=True)


def test_of_an_attempt_that_failed_nothing_stays_in_the_run(
    files: Files, store: Store, tmp_path: Path
) -> None:
    for place in (OUT, str(tmp_path / "out")):
        with Output(files, place, resume=False) as output:
            files.write(join(output.staged, "day/left.parquet"), b"12")
            files.write(join(output.staged, "day/good.parquet"), b"123")
            good = ExportedFile(f"{output.run.directory}/day/good.parquet", 3, 0, 0, {})
            run = replace(output.run, files=(good,))
            output.commit(Manifest("id", {}, (run,)))
        assert [one.name for one in files.list(join(place, "run=000001/day"))] == ["good.parquet"]
        assert exported_files(place, store.settings) == [join(place, "run=000001/day/good.parquet")]

        with Output(files, place, resume=True) as output:
            gone = replace(good, path=f"{output.run.directory}/day/gone.parquet")
            again = Manifest("id", {}, (run, replace(output.run, files=(gone,))))
            with pytest.raises(PipelineError, match=r"day/gone.parquet is not as it was written \(1 files\)"):
                output.commit(again)
        assert load(files, place).runs == (run,)


def test_what_a_killed_export_left_is_made_anew(tmp_path: Path) -> None:
    killed = tmp_path / "out.part"
    (killed / "_part-000001").mkdir(parents=True)
    (killed / "_part-000001" / "a.parquet").write_bytes(b"1")
    (killed / MANIFEST).write_text("{}")
    with pytest.raises(PipelineError, match=r"out\.part exists already.*resume=True"):
        Output(Files(), str(tmp_path / "out"), resume=False)
    with Output(Files(), str(tmp_path / "out"), resume=True) as output:
        assert sorted(path.name for path in killed.iterdir()) == ["_lock"]
        output.commit(Manifest("id", {}, (output.run,)))
    assert load(Files(), str(tmp_path / "out")).export_id == "id"
    (tmp_path / "other.part").mkdir()
    (tmp_path / "other.part" / "mine").write_bytes(b"")
    with pytest.raises(PipelineError, match="exists already"):
        Output(Files(), str(tmp_path / "other"), resume=True)


def test_of_two_exports_at_once_the_later_one_goes_on(files: Files, store: Store) -> None:
    first = Output(files, OUT, resume=True)
    first.__enter__()
    with Output(files, OUT, resume=True) as second:
        with pytest.raises(PipelineError, match="a second export has begun"):
            first.commit(Manifest("first", {}, (first.run,)))
        first.__exit__(PipelineError, None, None)
        assert names(store) == ["_lock"]
        second.commit(Manifest("second", {}, (second.run,)))
    assert load(files, OUT).export_id == "second"


@pytest.mark.parametrize("master", ["none", "local[2]"])
def test_export_and_replay_by_url(
    request: pytest.FixtureRequest,
    broker: Endpoints,
    topics: Topics,
    store: Store,
    call: Call,
    topic: str,
    master: str,
) -> None:
    if master != "none":
        request.getfixturevalue("on_spark")
    rows = {"value": [b"%d" % n for n in range(500)], "__key": [f"k{n % 7}" for n in range(500)]}
    topics.write(topic, rows | {"__eventTime": [1000 + n for n in range(500)]}, batchRows="7")
    settings = [part for name, value in store.settings.items() for part in ("--option", f"{name}={value}")]
    place = ("--master", master, "--url", broker.service_url, *settings)
    code, text, error = call("export", topic, "--out", OUT, "--json", *place)
    assert code == 0, error
    assert json.loads(text)["by_topic"] == {topic: 500}
    topics.write(topic, {"value": [b"new"]})
    assert call("export", "--continue", "--out", OUT, *place)[0] == 0
    assert [name.partition("/")[0] for name in names(store)] == [MANIFEST, "run=000001", "run=000002"]
    assert call("replay", OUT, "--rename", f"{topic}={topic}-back", *place)[0] == 0
    again = topics.read(f"{topic}-back", "__batchIndex")
    before = topics.read(topic, "__batchIndex")
    same = ("value", "__key", "__eventTime", "__messageProperties", "__batchIndex")
    assert [[row[name] for name in same] for row in again] == [[row[name] for name in same] for row in before]


def test_an_export_that_is_cut_short_continues_exactly(
    broker: Endpoints, topics: Topics, store: Store, topic: str
) -> None:
    wanted = options(broker, store, topic=topic)
    topics.write(topic, {"value": [b"%d" % n for n in range(100)]})

    def refuse(key: str) -> None:
        if key.endswith(".parquet"):
            raise PermissionError

    store.on_put = refuse
    with pytest.raises(Exception, match="give credentials"):
        export(OUT, wanted)
    store.on_put = lambda key: None
    export(OUT, wanted)
    store.objects["backups/orders/run=000002/left.parquet"] = b"of an attempt that was killed"
    topics.write(topic, {"value": [b"more"]})
    assert export(OUT, wanted, resume=True).rows == 1
    values = [
        value.as_py()
        for url in exported_files(OUT, store.settings)
        for value in pq.read_table(Files(store.settings).open(url))["value"]
    ]
    assert sorted(values) == sorted([b"more", *(b"%d" % n for n in range(100))])
    assert not any("left" in name for name in names(store))
    damaged = next(key for key in store.objects if "run=000002" in key and key.endswith(".parquet"))
    store.objects[damaged] = store.objects[damaged][:-9] + bytes(9)
    with pytest.raises(Exception, match="is damaged"):
        replay(OUT, wanted, rename={topic: f"{topic}-back"})
