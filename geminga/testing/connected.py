"""A broker that runs already, in a container or on another machine, and how far ahead of the machine's the
clock of each broker of the kit is.

    @pytest.fixture(scope="session")
    def geminga_broker():
        return geminga.connected("pulsar://localhost:6650", "http://localhost:8080")
"""

from __future__ import annotations

from typing import Final, NamedTuple

from geminga.testing.requests import Refused, ask

AHEAD_MS: Final = 1044 * 7 * 86_400_000
"""The broker's clock begins 20 years ahead of the machine's, on the same day of the week. So a time of the
one is never one of the other, and what mistakes them fails in the first test as in all others.
"""


class ConnectedBroker(NamedTuple):
    """Made by `connected`."""

    service_url: str
    """`pulsar://host:port`, as clients of this machine reach it."""
    web_url: str
    """`http://host:port`, for the admin API and metrics."""
    log: str = "the log of this broker is where it runs"


def connected(service_url: str, web_url: str) -> ConnectedBroker:
    """A broker that was started with `--clock virtual --chaos`, for the fixture `geminga_broker`. Its clock
    is put 20 years ahead, unless an earlier session has done that.

    A port that a container engine maps is not loopback to the broker: give broker and tests the same
    environment variable GEMINGA_OPERATOR_TOKEN. Raises `Refused`, and OSError if no broker answers.
    """
    broker = ConnectedBroker(service_url, web_url.rstrip("/"))
    try:
        set_ahead(broker.web_url)
    except OSError as error:
        raise ConnectionError(
            f"{broker.web_url}: no broker answers ({getattr(error, 'reason', error)}); start one with "
            "'--clock virtual --chaos'"
        ) from None
    return broker


def set_ahead(web_url: str) -> None:
    """Put the clock ahead. Raises `Refused` with what to do for a broker whose clock cannot be moved."""
    clock = ask(web_url, "GET", "/geminga/clock")
    if clock["clock"] != "virtual":
        raise Refused(
            f"{web_url}: the clock of this broker is the machine's, and tests move theirs; start it with "
            "'--clock virtual --chaos' on a data directory of its own"
        )
    # By the broker's word: a library may have set the clock of this process.
    if clock["now_ms"] < clock["wall_ms"] + AHEAD_MS // 2:
        ask(web_url, "POST", "/geminga/clock", {"ms": AHEAD_MS})
