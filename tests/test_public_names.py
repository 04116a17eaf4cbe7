"""What `import geminga` offers to programs: cheap to import, typed, and it works."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import geminga
from geminga import child_broker
from tests.e2e.waiting import eventually

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


def test_getting_all_names_that_it_lists_does_not_import_spark() -> None:
    """As freezegun does, with the clocks stopped."""
    code = (
        "import sys, geminga; [getattr(geminga, name) for name in dir(geminga)]; "
        "print({'geminga.testing.running', 'geminga.pipeline', 'pyspark'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "{'geminga.testing.running'}\n"


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


def test_a_broker_stops_with_the_program_that_started_it(tmp_path: Path) -> None:
    program = (
        "import geminga, sys; broker = geminga.ChildBroker(sys.argv[1]); broker.start(); "
        "print(broker.web_url, broker._process.pid, flush=True); input()"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "data")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        web_url, pid = parent.stdout.readline().split()
        parent.kill()
    address = urlsplit(web_url)

    def is_closed() -> bool:
        try:
            socket.create_connection((address.hostname, address.port)).close()
        except ConnectionRefusedError:
            return True
        return False

    try:
        assert eventually(is_closed)
    except BaseException:
        os.kill(int(pid), signal.SIGKILL)
        raise


def test_a_forked_process_leaves_the_broker_alone() -> None:
    program = """if True:
        import geminga, os, sys
        with geminga.ChildBroker() as broker:
            for way_out in (lambda: None, broker.stop):
                if not (child := os.fork()):
                    way_out()
                    sys.exit()
                print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), broker.is_running)
            print(broker.data_dir.is_dir())
    """
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert run.stdout.split() == ["0", "True", "0", "True", "True"], run.stderr


def test_a_start_that_is_interrupted_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def interrupt(line: bytes) -> None:
        raise KeyboardInterrupt

    class Started(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self)

    monkeypatch.setattr(child_broker.subprocess, "Popen", Started)
    monkeypatch.setattr(child_broker.json, "loads", interrupt)
    broker = geminga.ChildBroker()
    with pytest.raises(KeyboardInterrupt):
        broker.start()
    assert [process.returncode for process in started] == [-signal.SIGKILL]
    assert not broker.is_running
