"""`geminga standalone` as a user meets it: a process, its two outputs, its exit code."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import pytest
import trio

from geminga.cli import standalone, stopping
from geminga.cli.arguments.data_directory import default_data_dir
from geminga.cli.arguments.ports import describe_refusal, owner_of
from geminga.config.config import Config
from geminga.errors import CorruptData
from tests.e2e.admin_http import Admin
from tests.e2e.broker_process import BrokerProcess, StandaloneProcess
from tests.e2e.child_process import running

SECONDS_MAX = 20
GEMINGA = [sys.executable, "-P", "-m", "geminga"]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*GEMINGA, *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        env={**os.environ, **environment},
    )


ANY_PORTS = ("--port", "0", "--web-port", "0")


def get(broker: StandaloneProcess, path: str) -> str:
    with urllib.request.urlopen(broker.endpoints.web_url + path, timeout=SECONDS_MAX) as response:
        return str(response.read().decode())


@pytest.fixture
def started(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as broker:
        yield broker


def test_ready_line_banner_and_a_clean_stop(started: BrokerProcess, tmp_path: Path) -> None:
    ready = started.ready
    assert ready["event"] == "ready"
    assert ready["binary"].startswith("pulsar://127.0.0.1:")
    assert ready["pid"] == started.pid
    assert ready["data_dir"] == str(tmp_path / "data")
    assert ready["startup_ms"] > 0
    assert Admin(started.endpoints.web_url).well().text == "ok"
    assert json.loads(get(started, "/admin/v2/namespaces/public")) == ["public/default"]
    index = get(started, "/")
    assert all(get(started, path) for path in re.findall('href="(/[^"]*)"', index))
    assert "/metrics" in index
    with socket.create_connection(("127.0.0.1", int(ready["binary"].rpartition(":")[2])), SECONDS_MAX):
        pass
    assert started.stop() == 0
    assert [json.loads(line) for line in started.printed] == [ready], "one line on standard output, no more"
    err = started.log_path.read_text()
    for expected in (ready["binary"], ready["web"], ready["data_dir"], "SIGTERM: stopping"):
        assert expected in err
    assert "Traceback" not in err


def test_interrupt_is_a_clean_stop_too(started: BrokerProcess) -> None:
    assert started.stop(signal.SIGINT) == 0
    assert "Traceback" not in started.log_path.read_text()


def test_a_second_signal_at_once_is_the_same_wish(started: BrokerProcess) -> None:
    started.send_signal(signal.SIGINT)
    assert started.stop(signal.SIGTERM) == 0
    assert "ending at once" not in started.log_path.read_text()


async def test_a_second_signal_later_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def signals() -> AsyncGenerator[int]:
        yield signal.SIGTERM
        yield signal.SIGTERM

    def leave(code: int) -> None:
        raise SystemExit(code)

    said: list[str] = []
    monkeypatch.setattr(stopping, "SAME_WISH_SECONDS", -1.0)
    monkeypatch.setattr(os, "_exit", leave)
    async with contextlib.aclosing(signals()) as received:
        with pytest.raises(SystemExit):
            await stopping.Stop(trio.CancelScope()).on(received, lambda: said.append("all"))
    assert said == ["all"], "what is logged before is written"


def test_a_terminal_gets_no_line_of_json(tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    command = [*GEMINGA, "standalone", "--data-dir", str(tmp_path / "d"), *ANY_PORTS]
    with running(command, stdout=theirs, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while "Ctrl-C" not in process.stderr.readline():
            assert process.poll() is None
        process.terminate()
        _, err = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 0, err
    os.write(theirs, b"nothing else")
    assert os.read(ours, 1000) == b"nothing else"
    os.close(ours)
    os.close(theirs)


def test_a_data_directory_is_used_by_one_broker_and_again_after_it(started: BrokerProcess) -> None:
    second = run("standalone", "--data-dir", started.ready["data_dir"], *ANY_PORTS)
    assert second.returncode == 4
    assert f"in use by process {started.pid}" in second.stderr
    assert "Traceback" not in second.stderr
    assert Admin(started.endpoints.web_url).well().text == "ok", "the first one is not disturbed"
    assert started.stop() == 0
    with BrokerProcess(started.data_dir) as third:
        assert Admin(third.endpoints.web_url).well().text == "ok"


def test_a_data_directory_that_cannot_be_used() -> None:
    result = run("standalone", "--data-dir", "/proc/nope", *ANY_PORTS)
    assert result.returncode == 4, result.stderr
    assert "/proc/nope: cannot" in result.stderr
    assert "--data-dir" in result.stderr
    assert "Traceback" not in result.stderr


def test_missing_rights_name_both_users_and_the_command_that_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from geminga.config.config import Config
    from geminga.storage.disk_errors import storage_error

    tmp_path.chmod(0o750)
    status, user, group = tmp_path.stat(), os.geteuid() + 1, os.getegid()
    monkeypatch.setattr(os, "geteuid", lambda: user)
    owner = (
        f"{tmp_path} belongs to user {status.st_uid}, group {status.st_gid} (mode 750); the broker runs as "
        f"user {user}, group {group}."
    )
    monkeypatch.delenv("GEMINGA_CONTAINER", raising=False)

    def said(code: int, data_dir: Path) -> list[str]:
        failure = OSError(code, os.strerror(code), str(data_dir / "lock"))
        error = storage_error(failure, "lock", str(failure.filename))
        error.__cause__ = failure
        assert standalone._Broker(Config(), str(data_dir)).explain(error) == 4
        return capsys.readouterr().err.splitlines()[1:]

    [first, then] = said(errno.EACCES, tmp_path)
    assert first == owner
    assert then.startswith(f"Run 'sudo chown -R {user}:{group} {tmp_path}', start the broker as user")
    [first, then] = said(errno.EACCES, tmp_path / "new")
    assert first == owner
    assert then.startswith(f"Run 'sudo install -d -o {user} -g {group} {tmp_path / 'new'}', or name")
    [first] = said(errno.EROFS, tmp_path)
    assert first.startswith(f"{tmp_path} is on a read-only file system: mount it writable")
    monkeypatch.setenv("GEMINGA_CONTAINER", "1")
    [first, then] = said(errno.EACCES, tmp_path)
    assert first == owner
    assert then.startswith(f"Run 'chown -R {user}:{group} DIRECTORY' where the volume's directory is")
    assert then.endswith(f"docker run --user {status.st_uid}:{status.st_gid}.")
    [first] = said(errno.EROFS, tmp_path)
    assert first.startswith(f"{tmp_path} is mounted read-only: remove ':ro'")


def test_data_is_wiped_where_it_is_geminga_s_and_nothing_else_is_there(
    started: BrokerProcess, tmp_path: Path
) -> None:
    data = started.data_dir
    before = (data / "bookie" / "cookie").read_text()
    wiping = ("standalone", "--wipe-data", *ANY_PORTS, "--data-dir")
    assert "in use by process" in run(*wiping, str(data)).stderr
    assert started.stop() == 0

    refused = run(*wiping, str(data), "--set", f"journalDirectories={tmp_path / 'journal'}")
    assert (refused.returncode, "journalDirectories" in refused.stderr) == (2, True)
    (data / "letters").write_text("mine")
    foreign = tmp_path / "foreign"
    for name in ("metadata", "index"):
        (foreign / name).mkdir(parents=True)
    for path, reason in ((data, "'letters' is not Geminga's"), (foreign, "no data directory of Geminga")):
        names = sorted(path.rglob("*"))
        refused = run(*wiping, str(path))
        assert refused.returncode == 4
        assert f"{path}: --wipe-data deletes nothing here: " in refused.stderr
        assert reason in refused.stderr
        assert set(path.rglob("*")) - {path / "lock"} == set(names) - {path / "lock"}
    (data / "letters").unlink()

    (data / "index.damage").write_text("a note")
    with BrokerProcess(data, arguments=["--wipe-data"]) as again:
        assert Admin(again.endpoints.web_url).well().text == "ok"
        assert (data / "bookie" / "cookie").read_text() != before, "the id of the instance is new"
        assert not (data / "index.damage").exists()
        assert "deleted all data in" in again.log_path.read_text()
    with BrokerProcess(tmp_path / "new", arguments=["--wipe-data"]):
        pass


@pytest.mark.parametrize("flag", ["--port", "--web-port"])
def test_a_port_that_is_taken_names_its_owner_and_the_flag(tmp_path: Path, flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        other = "--web-port" if flag == "--port" else "--port"
        result = run("standalone", "--data-dir", str(tmp_path / "d"), flag, port, other, "0")
    assert result.returncode == 3
    owner = f"process {os.getpid()} (" if os.path.isdir("/proc") else "another program"
    assert f"port {port} is already taken by {owner}" in result.stderr
    assert f"choose another with {flag} or" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_address_of_another_machine(tmp_path: Path) -> None:
    arguments = ("--data-dir", str(tmp_path / "d"), *ANY_PORTS)
    result = run("standalone", *arguments, "--bind-address", "203.0.113.1")
    assert result.returncode == 2
    assert "203.0.113.1: not an address of this machine" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--prot", "1"], "unknown flag --prot (did you mean --port?)"),
        (["--port", "abc"], "--port abc: brokerServicePort = 'abc' is not allowed"),
        (["--port", "70000"], "from 0 to 65535"),
        (["extra"], "unexpected argument 'extra'"),
        (["--memory", "1M"], "geminga standalone: --memory 1M: expected from 160M to 1024G\n"),
        (["--set", "x"], "--set x: expected KEY=VALUE"),
        (["-DdelayedDeliveryTickTimeMilis=1"], "Did you mean delayedDeliveryTickTimeMillis?"),
        (["--conf", "/nope/broker.conf"], "/nope/broker.conf"),
        (["--log-level", "loud"], "invalid choice: 'loud'"),
    ],
)
def test_wrong_usage_is_one_clear_line(arguments: list[str], expected: str) -> None:
    result = run("standalone", *arguments)
    assert result.returncode == 2
    assert expected in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_what_is_in_the_way_of_a_data_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name, in_the_way in (("file", "file"), ("file/data", "file"), ("link", "link")):
        result = run("standalone", "--data-dir", str(tmp_path / name), *ANY_PORTS)
        assert result.returncode == 4
        advice = "is not a directory; name another data directory with --data-dir"
        assert result.stderr == f"geminga standalone: {tmp_path / in_the_way} {advice}\n"


def test_a_configuration_file_with_mistakes(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("# ours\nbrokerServicePort=99999\nbrokerServicePrt=1\n")
    result = run("standalone", "--conf", str(conf), "--data-dir", str(tmp_path / "d"))
    assert result.returncode == 2
    assert f"{conf}:2: brokerServicePort = '99999' is not allowed" in result.stderr
    assert f"{conf}:3: unknown key 'brokerServicePrt'. Did you mean brokerServicePort?" in result.stderr
    assert not (tmp_path / "d").exists()


def test_file_environment_and_flags_meet_in_the_running_broker(tmp_path: Path) -> None:
    conf = tmp_path / "standalone.conf"
    conf.write_text(
        "webServicePort=0\nclusterName=fromfile\nkeepAliveIntervalSeconds=31\nzookeeperServers=x\n"
    )
    environment = {
        "brokerServicePort": "0",
        "PULSAR_PREFIX_clusterName": "fromenvironment",
        "keepAliveIntervalSeconds": "32",
    }
    with StandaloneProcess(
        *("--conf", str(conf), "-nfw", "-nss", "--data-dir", str(tmp_path / "d")),
        *("-D", "keepAliveIntervalSeconds=33"),
        log_path=tmp_path / "log",
        environment=environment,
    ) as broker:
        assert json.loads(get(broker, "/admin/v2/clusters")) == ["fromenvironment"]
        runtime = json.loads(get(broker, "/admin/v2/brokers/configuration/runtime"))
    assert runtime["keepAliveIntervalSeconds"] == "33"
    assert runtime["webServicePort"] == "0"
    assert "without effect: zookeeperServers" in broker.log_path.read_text()


def test_the_default_data_directory_is_the_users_and_named_in_the_banner(tmp_path: Path) -> None:
    environment = {"XDG_DATA_HOME": str(tmp_path), "HOME": str(tmp_path), "LOCALAPPDATA": str(tmp_path)}
    with StandaloneProcess(*ANY_PORTS, log_path=tmp_path / "log", environment=environment) as broker:
        data_dir = broker.ready["data_dir"]
    assert data_dir.startswith(str(tmp_path))
    assert data_dir.endswith("geminga")
    assert data_dir in broker.log_path.read_text()


def test_a_relative_data_home_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    assert os.path.isabs(default_data_dir())


def test_help_and_version_and_unknown_commands() -> None:
    overview = run("--help")
    assert overview.returncode == 0
    for command in ("standalone", "produce", "consume", "perf"):
        assert command in overview.stdout
    assert run("--version").stdout.startswith("geminga ")
    assert run().returncode == 2
    unknown = run("standalne")
    assert unknown.returncode == 2
    assert "Did you mean standalone?" in unknown.stderr


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys; from geminga.cli.main import main; main(['--help']);"
        "print([m for m in ('trio', 'google.protobuf', 'rocksdict', 'msgspec') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.endswith("[]\n")


def test_a_start_does_not_import_what_only_a_scrape_or_a_test_needs(tmp_path: Path) -> None:
    program = (
        "import sys, geminga.cli.standalone, geminga.server.server;"
        "import geminga.admin.api.table, geminga.admin.http.connection;"
        "names = ('prometheus_client', 'geminga.admin.metrics.exposition', 'geminga.admin.metrics.process',"
        " 'geminga.config.keys', 'difflib',"
        " 'asyncio', 'multiprocessing', 'hypothesis', 'grpc', 'simulation', 'geminga.cli.client.client');"
        "print([m for m in names if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_who_owns_a_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        [line] = describe_refusal("127.0.0.1", [("--port", port)])
        assert f"port {port} is already taken by" in line
        if os.path.isdir("/proc"):
            assert owner_of(port).startswith(f"process {os.getpid()} (")
    assert describe_refusal("127.0.0.1", [("--port", port)]) == []
    assert owner_of(port) == ""


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="the system does not list descriptors")
def test_the_owner_of_a_port_is_found_behind_a_descriptor_that_was_closed_meanwhile() -> None:
    """Listing descriptors takes one, the lowest that is free: here it comes before the socket's."""
    spare = [os.open("/dev/null", os.O_RDONLY) for _ in range(8)]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for fd in spare:
            os.close(fd)
        assert owner_of(taken.getsockname()[1]).startswith(f"process {os.getpid()} (")


def test_a_hint_is_given_where_it_helps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from geminga.bookie.running.directory_lists import ForeignLists, RepeatedDirectory
    from geminga.errors import StorageError
    from geminga.metadata.instance import ForeignDirectory
    from geminga.storage.disk_errors import DiskFull

    for error, code, hint in (
        (ForeignDirectory("x"), 4, f"The data directory is {tmp_path}; --data-dir names another one."),
        (ForeignLists("x"), 4, ""),
        (StorageError("x"), 4, ""),
        (RepeatedDirectory("x"), 2, ""),
        (DiskFull("x"), 4, "Free some space on that disk, and start again."),
        (CorruptData(f"{tmp_path}/metadata/1.sst: damaged"), 4, "bookie unrecorded restore"),
        (CorruptData(f"{tmp_path}/bookie: damaged"), 4, "geminga bookie verify --data-dir"),
    ):
        broker = standalone._Broker(Config(), str(tmp_path))
        assert broker.explain(error) == code
        first, *rest = capsys.readouterr().err.splitlines()
        assert first == f"geminga standalone: {error}"
        assert (len(rest), hint in "".join(rest)) == (bool(hint), True)


def test_the_command_of_a_hint_can_be_pasted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data_dir = str(tmp_path / "my data")
    for file, command in (("metadata/1.sst", "unrecorded restore"), ("bookie", "verify")):
        standalone._Broker(Config(), data_dir).explain(CorruptData(f"{data_dir}/{file}: damaged"))
        assert f"'geminga bookie {command} --data-dir '{data_dir}''" in capsys.readouterr().err


def test_names_that_are_not_utf_8_are_refused_in_one_line(tmp_path: Path) -> None:
    name = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    for arguments, code, expected in (
        (("--data-dir", name), 4, "the name is not UTF-8; choose another one with --data-dir"),
        (("--set", f"clusterName={name}"), 2, "the value of clusterName is not UTF-8"),
        (("--set", f"ledgerDirectories={name}"), 2, "the value of ledgerDirectories is not UTF-8"),
    ):
        result = run("standalone", "--data-dir", str(tmp_path / "d"), *ANY_PORTS, *arguments)
        assert result.returncode == code
        assert expected in result.stderr
        assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_systems_leave_in_a_directory_does_not_make_it_foreign(tmp_path: Path) -> None:
    data, disk = tmp_path / "data", tmp_path / "disk"
    for directory in (data, disk):
        for name in ("lost+found", ".snapshot/hourly.0", ".zfs/snapshot"):
            (directory / name).mkdir(parents=True)
        (directory / ".DS_Store").touch()
    settings = {"journalDirectories": str(disk), "ledgerDirectories": str(disk)}
    with BrokerProcess(data, settings=settings) as broker:
        assert Admin(broker.endpoints.web_url).well().text == "ok"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letters").touch()
    refused = run("standalone", "--data-dir", str(tmp_path / "other"), *ANY_PORTS)
    assert refused.returncode == 4
    assert "is not empty and not a data directory of Geminga (it has 'letters'" in refused.stderr


@pytest.mark.parametrize("command", [("standalone", *ANY_PORTS), ("status",), ("bookie", "verify")])
def test_an_empty_data_directory_is_not_the_default(command: tuple[str, ...], tmp_path: Path) -> None:
    """`--data-dir "$DATA"` in a script that sets no DATA opened the user's own directory."""
    refused = run(*command, "--data-dir", "", XDG_DATA_HOME=str(tmp_path))
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--data-dir: the name is empty; leave the option out" in refused.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("stray", ["journal/{}.journal", "entry-logs/{}.log"])
def test_a_stray_file_with_a_number_that_no_bookie_gives_is_named(started: BrokerProcess, stray: str) -> None:
    assert started.stop() == 0
    file = started.data_dir / "bookie" / stray.format("9" * 20)
    file.touch()
    refused = run("standalone", "--data-dir", str(started.data_dir), *ANY_PORTS)
    assert refused.returncode == 4
    assert f"{file}: the number in its name is larger than any" in refused.stderr
    assert "Traceback" not in refused.stderr
    file.unlink()
    with BrokerProcess(started.data_dir) as again:
        assert Admin(again.endpoints.web_url).well().text == "ok"
