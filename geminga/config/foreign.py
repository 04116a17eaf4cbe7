"""Keys that Pulsar knows and this broker does not serve: which of them may be ignored.

Most of them tune parts that Geminga does not have. Some promise something to the user, and ignoring those
silently would be dangerous. A key for protection that Geminga lacks is an error, and a key that concerns
stored messages gets a line of its own. Imported only when such a key was set.
"""

from __future__ import annotations

from collections.abc import Mapping

from geminga.config.file import Property
from geminga.config.keys import PULSAR_KEYS

PREFIXES = ("bookkeeper_", "brokerClient_", "dbStorage_", "dlog.", "storage.", "storageserver.")
"""Families of keys that Pulsar passes to BookKeeper and to its own clients, with any suffix."""

_SWITCHES = frozenset(
    {
        "authenticateMetricsEndpoint",
        "authenticationEnabled",
        "authorizationEnabled",
        "encryptionRequireOnProducer",
        "tlsEnabled",
        "tlsEnabledWithKeyStore",
        "tlsRequireTrustedClientCertOnConnect",
    }
)
_TLS_PORTS = frozenset({"brokerServicePortTls", "webServicePortTls"})

# With the values that ask for nothing: the broker's own default, and what the stock files have.
_ABOUT_DATA: Mapping[str, tuple[str, ...]] = {
    "backlogQuotaDefaultLimitGB": ("-1", "-1.0", "10"),
}


def is_pulsar_key(key: str) -> bool:
    return key in PULSAR_KEYS or key.startswith(PREFIXES)


def problems(given: Mapping[str, Property], *, in_container: bool = False) -> list[str]:
    """A line for each key that requests protection which this broker lacks. `given` has the effective
    values, by key.
    """
    reach = (
        "In a container it listens on all addresses (bindAddress 0.0.0.0): publish its ports for trusted "
        "hosts only, as in -p 127.0.0.1:6650:6650."
        if in_container
        else "It listens on loopback (bindAddress 127.0.0.1) unless told otherwise: let only trusted hosts "
        "reach it."
    )
    found = []
    for key, last in given.items():
        if key in _SWITCHES and last.value.lower() == "true":
            wanted, unset = "protection", f"remove {key} or set it to false"
        elif key in _TLS_PORTS and last.value:
            wanted, unset = "TLS", f"remove {key}"
        else:
            continue
        found.append(
            f"{last.source}: {key} = {last.value!r} asks for {wanted} that this broker does not have; "
            f"{unset}. {reach}"
        )
    return found


def notices(given: Mapping[str, Property]) -> list[str]:
    """The notices for all other keys: a line for each key about stored messages, one for all the rest."""
    about_data = [
        key
        for key, last in given.items()
        if last.value and last.value.lower() not in _ABOUT_DATA.get(key, (last.value.lower(),))
    ]
    lines = [
        f"{given[key].source}: {key} = {given[key].value!r} has no effect: "
        "this broker neither refuses nor drops anything because of it."
        for key in about_data
    ]
    rest = [key for key in given if key not in about_data]
    if rest:
        lines.append(f"Known to Pulsar, not served here, without effect: {', '.join(rest)}")
    return lines
