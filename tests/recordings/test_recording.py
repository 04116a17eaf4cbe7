"""A recording is replaced in one step, by answers of a real Pulsar with the right settings, or not at all."""

from __future__ import annotations

import json
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from geminga.wire import pulsar_pb2 as pb
from tests.broker.topic import lifetime_recording
from tests.e2e.binary_session import frame
from tests.e2e.operators import policy_recording, schema_recording
from tests.recordings.real_broker import PULSAR_VERSION, UnfitBroker, checked_version, different_settings
from tests.recordings.recording import Recorded, Recording

SETTINGS = {"ledgerEntries": "10", "types": "Failover,Shared"}
OLD = Recorded("4.0.7", SETTINGS, {"one": ["1"], "two": [["2", None]]})
Play = Callable[[str, str, list[str]], dict[str, list[Any]]]


class Web(ThreadingHTTPServer):
    """Answers GET with what `pages` has for the path, anything else with 404."""

    daemon_threads = True
    pages: dict[str, str]


class WebHandler(BaseHTTPRequestHandler):
    server: Web

    def do_GET(self) -> None:
        page = self.server.pages.get(self.path)
        self.send_response(404 if page is None else 200)
        self.end_headers()
        self.wfile.write((page or "").encode())

    def log_message(self, format: str, *arguments: object) -> None:
        pass


class Binary(socketserver.ThreadingTCPServer):
    daemon_threads = True
    server_version = "Pulsar Server4.0.7"


class BinaryHandler(socketserver.StreamRequestHandler):
    server: Binary

    def handle(self) -> None:
        self.request.recv(4096)
        connected = pb.CommandConnected(server_version=self.server.server_version, protocol_version=20)
        self.request.sendall(frame(connected))
        self.request.recv(1)


class StandIn:
    """A broker as far as a recorder asks before it records: by default a fit one."""

    def __init__(self) -> None:
        self.web = Web(("127.0.0.1", 0), WebHandler)
        self.binary = Binary(("127.0.0.1", 0), BinaryHandler)
        self.version("4.0.7")
        self.settings({"ledgerEntries": "10", "types": "[Shared, Failover]", "other": "1"})

    def version(self, version: str) -> None:
        self.binary.server_version = f"Pulsar Server{version}"
        self.web.pages = {**getattr(self.web, "pages", {}), "/admin/v2/brokers/version": version}

    def settings(self, settings: dict[str, str]) -> None:
        self.web.pages["/admin/v2/brokers/configuration/runtime"] = json.dumps(settings)

    @property
    def urls(self) -> list[str]:
        return [
            f"pulsar://127.0.0.1:{self.binary.server_address[1]}",
            f"http://127.0.0.1:{self.web.server_address[1]}",
        ]


@contextmanager
def serving(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def broker() -> Iterator[StandIn]:
    found = StandIn()
    with serving(found.web), serving(found.binary):
        yield found


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    found = Recording(tmp_path / "recording.json", SETTINGS)
    found.write(OLD)
    return found


def answers(service_url: str, web_url: str, names: list[str]) -> dict[str, list[Any]]:
    return {name: [name.upper()] for name in names}


def not_asked(service_url: str, web_url: str, names: list[str]) -> dict[str, list[Any]]:
    raise AssertionError("a broker that is not fit was asked")


def refused(recording: Recording, arguments: list[str]) -> None:
    """With exit code 2, before any case was played, and the file is as it was."""
    with pytest.raises(SystemExit) as stopped:
        recording.main(["one", "two"], not_asked, arguments)
    assert stopped.value.code == 2
    assert recording.read() == OLD


def test_version_settings_and_answers_are_written(broker: StandIn, recording: Recording) -> None:
    broker.version("4.0.9")
    recording.main(["two", "one"], answers, broker.urls)
    assert recording.read() == ("4.0.9", SETTINGS, {"two": ["TWO"], "one": ["ONE"]})
    assert list(recording.read().cases) == ["two", "one"]
    assert [path.name for path in recording.path.parent.iterdir()] == ["recording.json"]


def test_cases_that_are_not_asked_again_keep_their_answers(broker: StandIn, recording: Recording) -> None:
    recording.main(["one", "two"], answers, [*broker.urls, "tw"])
    assert recording.read().cases == {"one": ["1"], "two": ["TWO"]}


def test_answers_of_two_versions_are_not_mixed(
    broker: StandIn, recording: Recording, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.version("4.0.8")
    refused(recording, [*broker.urls, "tw"])
    assert "record all of them" in capsys.readouterr().err


def test_a_misspelled_case_is_not_taken_for_none_at_all(broker: StandIn, recording: Recording) -> None:
    refused(recording, [*broker.urls, "thr"])


@pytest.mark.parametrize("version", ["4.1.0", "3.0.7", "4.0.7-geminga-0.1.0", "4.0.7\n<html>", ""])
def test_another_version_is_refused(broker: StandIn, recording: Recording, version: str) -> None:
    broker.version(version)
    refused(recording, broker.urls)


def test_a_geminga_that_calls_itself_pulsar_is_refused(
    broker: StandIn, recording: Recording, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.web.pages["/geminga/v1/memory"] = "{}"
    refused(recording, broker.urls)
    assert "is a Geminga" in capsys.readouterr().err


def test_two_urls_of_different_brokers_are_refused(
    broker: StandIn, recording: Recording, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.binary.server_version = "Pulsar Server4.0.6"
    refused(recording, broker.urls)
    assert "another broker" in capsys.readouterr().err


def test_every_setting_that_differs_is_named(
    broker: StandIn, recording: Recording, capsys: pytest.CaptureFixture[str]
) -> None:
    broker.settings({"ledgerEntries": "50000"})
    refused(recording, broker.urls)
    said = capsys.readouterr().err
    assert "ledgerEntries=50000, needs 10; types=None, needs Failover,Shared" in said


@pytest.mark.parametrize("silent", [0, 1])
def test_a_port_where_nothing_answers_is_refused(broker: StandIn, recording: Recording, silent: int) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        urls = broker.urls
        urls[silent] = f"{urls[silent].partition(':')[0]}://127.0.0.1:{bound.getsockname()[1]}"
        refused(recording, urls)


def test_a_broker_that_does_not_show_its_settings_is_refused(broker: StandIn) -> None:
    del broker.web.pages["/admin/v2/brokers/configuration/runtime"]
    with pytest.raises(UnfitBroker, match="404"):
        checked_version(broker.urls[0], broker.urls[1], SETTINGS)


def breaks_off(service_url: str, web_url: str, names: list[str]) -> dict[str, list[Any]]:
    raise ConnectionResetError


def forgets_one(service_url: str, web_url: str, names: list[str]) -> dict[str, list[Any]]:
    return {"one": ["ONE"]}


def answers_no_json(service_url: str, web_url: str, names: list[str]) -> dict[str, list[Any]]:
    return {"one": ["ONE"], "two": [object()]}


@pytest.mark.parametrize("play", [breaks_off, forgets_one, answers_no_json])
def test_a_recording_that_fails_half_way_leaves_the_old_one(
    broker: StandIn, recording: Recording, play: Play
) -> None:
    with pytest.raises((ConnectionResetError, RuntimeError, TypeError)):
        recording.main(["one", "two"], play, broker.urls)
    assert recording.read() == OLD


def test_a_file_that_cannot_be_finished_leaves_the_old_one(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, text: str) -> int:
        with path.open("w") as file:
            file.write(text[:10])
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(OSError, match="no space"):
            recording.write(OLD._replace(version="4.0.9"))
    assert recording.read() == OLD
    assert [path.name for path in recording.path.parent.iterdir()] == ["recording.json"]


def test_settings_are_compared_by_value_and_not_by_notation() -> None:
    found = {"types": "[Shared, Failover]", "limit": "-1.0", "none": ""}
    assert different_settings({"types": "Failover,Shared", "limit": "-1", "none": ""}, found) == []
    assert different_settings({"types": "Shared"}, found) == ["types=[Shared, Failover], needs Shared"]
    assert different_settings({"gone": ""}, found) == ["gone=None, needs "]


@pytest.mark.parametrize("recorder", [policy_recording, schema_recording, lifetime_recording])
def test_committed_answers_are_of_a_pulsar_with_the_settings_that_the_recorder_needs(recorder: Any) -> None:
    recorded = recorder.RECORDING.read()
    assert PULSAR_VERSION.fullmatch(recorded.version)
    assert recorded.settings == recorder.SETTINGS
    assert recorded.cases
