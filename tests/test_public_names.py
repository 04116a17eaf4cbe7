"""What `import geminga` offers to programs: cheap to import, typed, and it works."""

from __future__ import annotations

import json
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import geminga
from geminga import child_broker

PROGRAM = """
import geminga

def use() -> None:
    with geminga.ChildBroker(settings={"defaultNumPartitions": "2"}) as broker:
        url: str = broker.service_url
        reveal_type(broker.web_url)
        reveal_type(geminga.read_topic)
        reveal_type(geminga.__version__)
        geminga.ChildBroker(settings=3)
        broker.no_such_name
"""


def test_importing_it_imports_nothing_else() -> None:
    code = (
        "import sys; before = set(sys.modules); import geminga; "
        "print(sorted(set(sys.modules) - before), 'ChildBroker' in dir(geminga))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['geminga'] True\n"


def test_every_name_is_there_and_no_other() -> None:
    pytest.importorskip("pyarrow")  # read_topic needs geminga[spark]
    for name in geminga.__all__:
        assert getattr(geminga, name) is not None
    assert geminga.ChildBroker is child_broker.ChildBroker
    with pytest.raises(AttributeError, match="module 'geminga' has no attribute 'no_such_name'"):
        geminga.no_such_name  # noqa: B018


def test_a_program_of_a_user_is_checked_by_mypy(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    run = [sys.executable, "-m", "mypy", "--config-file=", "--no-incremental", "--follow-imports=silent"]
    done = subprocess.run(
        [*run, "--ignore-missing-imports", str(program)], capture_output=True, text=True, check=False
    )
    found = [line.partition(": ")[2] for line in done.stdout.splitlines()]
    assert found[0] == 'note: Revealed type is "str"', done.stdout
    assert "RecordBatchReader" in found[1] or "def (service_url: str" in found[1]
    assert found[2] == 'note: Revealed type is "str"'
    assert [line for line in found if line.startswith("error")] == [
        'error: Argument "settings" to "ChildBroker" has incompatible type "int"; '
        'expected "Mapping[str, str] | None"  [arg-type]',
        'error: "ChildBroker" has no attribute "no_such_name"  [attr-defined]',
    ]


def clusters(web_url: str) -> object:
    parts = urlsplit(web_url)
    connection = HTTPConnection(parts.hostname or "", parts.port, timeout=10)
    connection.request("GET", "/admin/v2/clusters")
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return answer


def test_a_child_broker_serves_comes_back_and_cleans_up() -> None:
    with geminga.ChildBroker(settings={"clusterName": "child"}) as broker:
        assert broker.service_url.startswith("pulsar://127.0.0.1:")
        assert clusters(broker.web_url) == ["child"]
        broker.kill()
        broker.start()
        assert clusters(broker.web_url) == ["child"], "on the same data"
        assert broker.log.count("is ready") == 2
        data_dir = broker.data_dir
        assert data_dir.is_dir()
    assert not data_dir.exists()
    broker.stop()


def test_a_directory_of_the_caller_stays_and_a_failure_is_told(tmp_path: Path) -> None:
    failure = pytest.raises(geminga.BrokerFailed, match="code 4 before it was ready(.|\n)*in use")
    with geminga.ChildBroker(tmp_path / "data") as broker, failure:
        geminga.ChildBroker(broker.data_dir).start()
    assert (tmp_path / "data").is_dir()
    with pytest.raises(geminga.BrokerFailed, match=r"code 2(.|\n)*unknown key 'nonsense'"):
        geminga.ChildBroker(tmp_path / "data", settings={"nonsense": "1"}).start()
