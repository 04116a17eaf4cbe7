"""Files by URL: what URLs and settings mean, files that are whole or not there, errors with advice."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from geminga.errors import StorageError
from geminga.pipeline.errors import BadOption, PipelineError
from geminga.pipeline.files.files import Files, Listed, NotThere
from geminga.pipeline.files.locations import Location, join, parse, s3_arguments, without_settings
from tests.pipeline.files.s3_server import BUCKET, s3_server


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("s3a://bucket/a/b/", Location("s3", "bucket", "a/b", "s3a")),
        ("S3://bucket", Location("s3", "bucket", "", "s3")),
        ("hdfs:///a", Location("hdfs", "", "a", "hdfs")),
        ("hdfs:/a", Location("hdfs", "", "a", "hdfs")),
        ("hdfs://name:8020/a", Location("hdfs", "name:8020", "a", "hdfs")),
        ("abfss://c@account.dfs.core.windows.net/a",
         Location("abfs", "c@account.dfs.core.windows.net", "a", "abfss")),
        ("memory://a/b", Location("memory", "a", "b", "memory")),
        ("/a/b c%20#,é", Location("file", "", "/a/b c%20#,é", "file")),
        ("file:/a/b", Location("file", "", "/a/b", "file")),
        ("file:///a/b", Location("file", "", "/a/b", "file")),
    ],
)  # fmt: skip
def test_a_url_is_taken_apart(given: str, expected: Location) -> None:
    assert parse(given) == expected
    assert parse(str(parse(given))) == expected


@pytest.mark.parametrize(
    ("given", "said"),
    [("s3a:///a", r"s3a://BUCKET/PATH"), ("gs:/a", "no bucket"), ("abfs://c/a", "no account is named")],
)
def test_a_url_that_names_no_bucket_is_refused(given: str, said: str) -> None:
    with pytest.raises(PipelineError, match=said):
        parse(given)


def test_a_relative_path_is_one_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert str(parse("here")) == str(tmp_path / "here")
    assert join("s3a://bucket/a/", "b", "c") == "s3a://bucket/a/b/c"


def test_settings_of_s3_are_those_of_hadoop() -> None:
    settings = {
        "fs.s3a.endpoint": "http://127.0.0.1:9000",
        "fs.s3a.access.key": "all",
        "fs.s3a.secret.key": "x",
        "fs.s3a.bucket.own.access.key": "mine",
    }
    there = {"scheme": "http", "endpoint_override": "127.0.0.1:9000", "region": "us-east-1",
             "force_virtual_addressing": False, "secret_key": "x"}  # fmt: skip
    assert s3_arguments(settings, "b") == there | {"access_key": "all"}
    assert s3_arguments(settings, "own") == there | {"access_key": "mine"}
    plain = {"fs.s3a.endpoint": "h:1", "fs.s3a.connection.ssl.enabled": "false"}
    assert s3_arguments(plain, "b")["scheme"] == "http"
    assert s3_arguments({}, "b") == {}
    anonymous = {
        "fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"
    }
    assert s3_arguments(anonymous, "b") == {"anonymous": True}
    with pytest.raises(BadOption, match="belong together"):
        s3_arguments({"fs.s3a.access.key": "k"}, "b")


def test_an_endpoint_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    with s3_server() as store:
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.settings["fs.s3a.endpoint"])
        Files().write(f"s3a://{BUCKET}/a", b"1")
        assert store.objects["a"] == b"1"


def test_settings_of_file_systems_are_told_from_options() -> None:
    given = {"service.url": "u", "fs.s3a.endpoint": "e", "spark.hadoop.fs.s3a.access.key": "k"}
    assert without_settings(given) == (
        {"service.url": "u"},
        {"fs.s3a.endpoint": "e", "fs.s3a.access.key": "k"},
    )


def test_files_of_this_machine(tmp_path: Path) -> None:
    files, root = Files(), str(tmp_path / "root")
    assert (files.list(root), files.exists(root), files.size_of(root)) == ([], False, None)
    files.write(join(root, "a"), b"1")
    files.write(join(root, "a"), b"12")
    with files.create(join(root, "below", "b")) as file:
        file.write(b"345")
        assert files.size_of(join(root, "below", "b")) is None
    assert files.list(root) == [Listed("a", 2, False), Listed("below", 0, True)]
    assert files.list(root, recursive=True)[-1] == Listed("below/b", 3, False)
    with files.open(join(root, "below", "b")) as file:
        assert file.read_at(2, 1) == b"45"
    assert (files.is_directory(root), files.can_rename(root), files.can_rename("s3a://b/a")) == (
        True,
        True,
        False,
    )
    files.rename(join(root, "below"), join(root, "beside"))
    assert files.read(f"file://{root}/beside/b") == b"345"
    files.delete(join(root, "a"))
    files.delete_tree(join(root, "beside"))
    files.delete_tree(join(root, "beside"))
    assert files.list(root) == []
    for call in (files.read, files.delete):
        with pytest.raises(NotThere, match=join(root, "a")):
            call(join(root, "a"))


def test_a_file_that_fails_on_the_way_is_not_there(tmp_path: Path) -> None:
    def fail() -> None:
        with Files().create(str(tmp_path / "a")) as file:
            file.write(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_settings_travel_and_are_not_shown() -> None:
    files = Files({"fs.s3a.secret.key": "secret"})
    assert pickle.loads(pickle.dumps(files)) == files
    assert "secret" not in repr(files)


def test_what_cannot_be_reached_is_said_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    settings = {
        "fs.s3a.endpoint": "http://127.0.0.1:1",
        "fs.s3a.access.key": "k",
        "fs.s3a.secret.key": "s3cr3t",
    }
    with pytest.raises(StorageError, match="correct fs.s3a.endpoint or AWS_ENDPOINT_URL") as failed:
        Files(settings).read("s3a://bucket/a")
    assert "s3cr3t" not in str(failed.value)
    with pytest.raises(PipelineError, match=r"nosuch: is no file system that is known here \(file, s3"):
        Files().read("nosuch://a/b")
    with pytest.raises(StorageError, match="CLASSPATH") as failed:
        Files().read("hdfs://127.0.0.1:1/a")
    assert len(str(failed.value)) < 600
