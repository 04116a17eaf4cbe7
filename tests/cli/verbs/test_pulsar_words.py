"""Pulsar's order of flags, its wording of errors, and its launcher's words."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import pytest

from geminga.cli.main import main
from geminga.cli.pulsar import SCRIPTS, standalone_flags

BIN = Path(__file__).parents[3] / "bin"
WARNING = '299 geminga "racks is stored and shown, and has no effect in this broker"'


class _Broker(BaseHTTPRequestHandler):
    asked: ClassVar[list[tuple[str, str]]] = []

    def do_GET(self) -> None:
        self.asked.append((self.command, self.path))
        if self.path.endswith("missing"):
            self._answer(404, json.dumps({"reason": "Tenant does not exist"}))
        elif self.path.endswith("page"):
            self._answer(502, "<html>gateway</html>")
        else:
            self._answer(200, '["a","b"]')

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._answer(204, "", WARNING)

    def _answer(self, status: int, text: str, warning: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        if warning:
            self.send_header("Warning", warning)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _Broker)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    "before",
    [
        ["--admin-url", "{}"],
        ["--admin-url={}", "--request-timeout", "30", "--tls-allow-insecure"],
        ["--auth-plugin", "a.B", "--auth-params", "token:x", "--admin-url", "{}"],
    ],
)
@pytest.mark.parametrize("program", [[], ["pulsar-admin"]])
def test_global_flags_stand_in_front(
    url: str, before: list[str], program: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    given = [word.replace("{}", url) for word in before]
    assert main([*program, *given, "tenants", "list"]) == 0
    assert capsys.readouterr().out == "a\nb\n"


def test_errors_in_either_wording(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--admin-url", url, "tenants", "get", "missing"]) == 1
    assert capsys.readouterr().err == "geminga tenants get: Tenant does not exist\n"
    assert main(["pulsar-admin", "--admin-url", url, "tenants", "get", "missing"]) == 1
    assert capsys.readouterr().err == "HTTP 404 Not Found\n\nReason: Tenant does not exist\n"
    assert main(["pulsar-admin", "--admin-url", url, "tenants", "get", "page"]) == 1
    assert capsys.readouterr().err == "HTTP 502 Bad Gateway\n\nReason: 502 Bad Gateway\n"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["tenant", "list"], "unknown group 'tenant' (did you mean tenants?)"),
        (["tenants", "lst"], "unknown verb 'lst'. Did you mean list?"),
        (["functions", "list"], "functions: this broker has none"),
        (["--admin-url"], "--admin-url: expected a value"),
        (["--verbose", "tenants"], "unknown flag --verbose"),
    ],
)
def test_what_is_not_understood_is_named(
    given: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pulsar-admin", *given]) == 2
    assert told in capsys.readouterr().err


def test_what_has_no_effect_is_told(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["bookies", "set-bookie-rack", "-b", "a:1", "-r", "r", "--admin-url", url]
    assert main(line) == 0
    out, err = capsys.readouterr()
    assert (out, err) == ("", "warning: racks is stored and shown, and has no effect in this broker\n")


def test_a_verb_with_a_flag_named_url_takes_the_brokers_in_front(url: str) -> None:
    _Broker.asked.clear()
    main(["--admin-url", url, "brokers", "namespaces", "c", "--url", "h:8080"])
    assert _Broker.asked == [("GET", "/admin/v2/brokers/c/h%3A8080/ownedNamespaces")]


def test_backlogs_are_not_cleared_unasked(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["namespaces", "clear-backlog", "a/b", "--admin-url", url]
    monkeypatch.setattr("builtins.input", lambda _: "n")
    assert main(line) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("builtins.input", lambda _: "y")
    assert main(line) == 0
    assert "no effect" in capsys.readouterr().err  # of every POST


def test_the_launchers_flags() -> None:
    assert standalone_flags(
        ["-nfw", "-nss", "--zookeeper-dir", "/z", "--bookkeeper-dir=/b", "-fwc", "f.yml", "--port", "1"]
    ) == [
        "-nfw",
        "-nss",
        "--port",
        "1",
    ]
    assert standalone_flags(["--metadata-dir", "/m", "-a", "host"]) == [
        "--data-dir",
        "/m",
        "--advertised-address",
        "host",
    ]


@pytest.mark.parametrize(
    "word", ["initialize-cluster-metadata", "initialize-transaction-coordinator-metadata"]
)
def test_what_a_broker_does_by_itself_is_no_error(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pulsar", word, "-cs", "zk:2181", "-c", "standalone"]) == 0
    assert "nothing to do" in capsys.readouterr().err


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_checkout_has_the_shims(name: str) -> None:
    path = BIN / name
    assert path.stat().st_mode & stat.S_IXUSR
    ended = subprocess.run([str(path), "--help"], capture_output=True, text=True, env=os.environ)
    assert ended.returncode == 0
    assert ended.stdout.startswith(f"usage: {name} ")
