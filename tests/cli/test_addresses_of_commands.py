"""A broker's address that is mistyped, or where nothing answers: one line and exit code 1."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from geminga import __version__
from geminga.cli.client import addresses
from geminga.cli.main import main
from geminga.loops import kind

URLS = (
    "foo:1:2",
    "ftp://127.0.0.2",
    "http://",
    "http://[::1",
    "http://127.0.0.2:99999",
    "http://127.0.0.2:1",
    "pulsar://127.0.0.2:1",
    "pulsar+ssl://127.0.0.2:1",
    "127.0.0.2:1",
    "pulsar://",
    "://",
)
COMMANDS = (
    ("topics", "list", "public/default"),
    ("topics", "list"),
    ("topics", "stats", "t"),
    ("namespaces", "create", "public/new"),
    ("brokers", "healthcheck"),
    ("subscriptions", "list", "t"),
    ("delayed", "summary", "t"),
    ("delayed", "summary", "t", "-s", "s"),
    ("clock", "now"),
    ("fault", "list"),
    ("events",),
    ("memory",),
    ("backup", "/nowhere"),
    ("snapshot", "reset"),
    ("top", "--json"),
    ("produce", "t", "-m", "x"),
    ("consume", "t", "-s", "s", "--timeout", "1ms"),
    ("read", "t"),
    ("peek", "t"),
    ("perf", "both", "--duration", "1ms"),
)


@pytest.fixture(autouse=True)
def nothing_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Port 8080 of this machine may be somebody's."""
    monkeypatch.setattr(addresses, "WEB_PORT", 1)
    for name in ("GEMINGA_URL", "GEMINGA_WEB_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_mistyped_address_is_one_line(
    command: Sequence[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for url in URLS:
        assert main([*command, "--url", url]) == 1, url
        told = capsys.readouterr()
        assert (told.out, told.err.count("\n")) == ("", 1), (url, told)
        monkeypatch.setenv("GEMINGA_URL", url)
        assert main(command) == 1, url
        assert capsys.readouterr().err.count("\n") == 1, url
        monkeypatch.delenv("GEMINGA_URL")


@pytest.mark.parametrize(
    "command",
    [
        ("topics", "list"),
        ("clock", "now"),
        ("delayed", "summary", "t", "-s", "s"),
        ("memory",),
        ("top", "--json"),
        ("status",),
        ("produce", "t", "-m", "x"),
    ],
    ids=" ".join,
)
def test_an_address_of_another_scheme_is_told_with_the_right_one(
    command: Sequence[str], broker_url: str, web_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    binary, web = (url.partition("://")[2] for url in (broker_url, web_url))
    for given, told in (
        (f"http://{binary}", f"this port speaks Pulsar's binary protocol; write pulsar://{binary}"),
        (f"https://{binary}", f"this port speaks Pulsar's binary protocol; write pulsar://{binary}"),
        (f"https://{web}", f"this port has no TLS; write http://{web}"),
        (f"pulsar://{web}", f"this port speaks HTTP; write http://{web}"),
    ):
        if given.startswith("pulsar://") and command[0] == "produce":
            continue
        assert main([*command, "--url", given]) == 1
        said = capsys.readouterr()
        assert f"{given}: {told}\n" in (said.out + said.err)


@pytest.mark.parametrize(
    "command", [("topics", "list"), ("delayed", "summary", "t"), ("events",), ("brokers", "namespaces", "c")]
)
@pytest.mark.parametrize("flag", [("--url", "http://127.0.0.2:1"), ("--admin-url=http://127.0.0.2:1",)])
def test_the_address_may_stand_in_front(
    command: Sequence[str], flag: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    more = ("--url", "h:1") if command[0] == "brokers" else ()
    assert main([*flag, *command, *more]) == 1
    assert "http://127.0.0.2:1: nothing listens there" in capsys.readouterr().err


def test_the_version_is_a_command_too(capsys: pytest.CaptureFixture[str]) -> None:
    for word in ("version", "--version", "-V"):
        assert main([word]) == 0
        assert capsys.readouterr().out == f"geminga {__version__} (loops: {kind()})\n"
