"""The operator's token: what is one, what opens, and that nothing shows it."""

from __future__ import annotations

import hmac
import logging

import pytest

from geminga.admin.http.router import Request
from geminga.admin.routes.operator.operator_gate import OperatorGate
from geminga.config.config import Config, ConfigError
from geminga.config.loading import load
from geminga.config.operator_token import NO_OPERATOR_TOKEN, OperatorToken, operator_token
from geminga.errors import OperatorOnly, OperatorTokenWrong

TOKEN = "0123456789abcdef"


class Process:
    def __init__(self, token: OperatorToken) -> None:
        self.operator_token = token


@pytest.mark.parametrize(
    ("header", "opens"),
    [
        (f"Bearer {TOKEN}", True),
        (f"bearer  {TOKEN} ", True),
        ("", False),
        ("Bearer", False),
        ("Bearer ", False),
        (TOKEN, False),
        (f"Basic {TOKEN}", False),
        (f"Bearer {TOKEN}0", False),
        (f"Bearer {TOKEN[:-1]}", False),
        (f"Bearer {TOKEN.upper()}", False),
        (f"Bearer {TOKEN}, Bearer {TOKEN}", False),
        ("Bearer \udce9\xe9\u1234", False),
        ("Bearer " + "x" * 1_000_000, False),
    ],
)
def test_only_the_token_itself_opens(header: str, opens: bool) -> None:
    assert OperatorToken(TOKEN).is_in(header) is opens


def test_without_a_token_nothing_opens_not_even_an_empty_one() -> None:
    for header in ("", "Bearer", "Bearer ", f"Bearer {TOKEN}"):
        assert not NO_OPERATOR_TOKEN.is_in(header)


def test_every_comparison_is_of_two_digests(monkeypatch: pytest.MonkeyPatch) -> None:
    """So its time depends neither on where a token differs nor on how long it is."""
    compared: list[tuple[int, int]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return one == other

    monkeypatch.setattr(hmac, "compare_digest", compare)
    for given in ("x", TOKEN, TOKEN[:-1] + "x", "x" * 10_000):
        OperatorToken(TOKEN).is_in(f"Bearer {given}")
    assert compared == [(32, 32)] * 4


@pytest.mark.parametrize(
    ("value", "problem"),
    [("short", "has 16 to 1024 characters, this one has 5"), ("x" * 1025, "this one has 1025")]
    + [(bad, "visible ASCII") for bad in ("sixteen characters with blanks", "é" * 16, "x" * 16 + "\x00")],
)
def test_a_token_that_is_none_stops_the_start_without_being_shown(value: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as raised:
        load(environment={"GEMINGA_OPERATOR_TOKEN": value})
    assert value not in str(raised.value)


def test_the_token_is_no_setting_and_has_no_text(caplog: pytest.LogCaptureFixture) -> None:
    loaded = load(environment={"GEMINGA_OPERATOR_TOKEN": f" {TOKEN}\n"})
    assert loaded.operator_token.is_in(f"Bearer {TOKEN}")
    assert loaded.config == Config()
    assert loaded.notices == []
    logging.getLogger("test").warning("%r %s", loaded, loaded)
    assert TOKEN not in caplog.text
    assert operator_token({"GEMINGA_OPERATOR_TOKEN": " "}) is NO_OPERATOR_TOKEN


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_the_own_machine_needs_no_token(host: str) -> None:
    for token in (NO_OPERATOR_TOKEN, OperatorToken(TOKEN)):
        OperatorGate(Process(token)).check(Request("POST", "/x", local_host=host))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "host", ["10.0.0.1", "192.168.1.1", "fe80::1%eth0", "::ffff:10.0.0.1", "2001:db8::1"]
)
def test_from_elsewhere_a_request_needs_the_token(host: str) -> None:
    def ask(token: OperatorToken, authorization: str = "") -> None:
        request = Request("POST", "/x", local_host=host, authorization=authorization)
        OperatorGate(Process(token)).check(request)  # type: ignore[arg-type]

    with pytest.raises(OperatorOnly, match="start the broker with GEMINGA_OPERATOR_TOKEN set"):
        ask(NO_OPERATOR_TOKEN, f"Bearer {TOKEN}")
    with pytest.raises(OperatorTokenWrong, match="the bearer token is missing"):
        ask(OperatorToken(TOKEN))
    with pytest.raises(OperatorTokenWrong, match="the bearer token is not the operator's") as raised:
        ask(OperatorToken(TOKEN), "Bearer wrong-wrong-wrong")
    assert TOKEN not in str(raised.value)
    assert "wrong" not in str(raised.value)
    ask(OperatorToken(TOKEN), f"Bearer {TOKEN}")
