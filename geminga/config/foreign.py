"""Keys that Pulsar knows and this broker does not serve: which may be passed over, and which may not.

Most of them tune what is not here. Some promise their user something, and passing over those in silence would
be dangerous: protection that would not be there is an error, and what becomes of stored messages is said in a
line of its own. Imported only when such a key was given.
"""

from __future__ import annotations

from collections.abc import Mapping

from geminga.config.file import Property
from geminga.config.keys import PULSAR_KEYS

PREFIXES = ("bookkeeper_", "brokerClient_", "dbStorage_", "dlog.", "storage.", "storageserver.")
"""Families of keys that Pulsar hands on to BookKeeper and to its own clients, whatever comes behind."""

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


def problems(given: Mapping[str, Property]) -> list[str]:
    """A line for each key that would protect the broker, if it were served. `given` is what won, by key."""
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
            f"{unset}. It listens on loopback (bindAddress 127.0.0.1) unless told otherwise: "
            "let only trusted hosts reach it."
        )
    return found


def notices(given: Mapping[str, Property]) -> list[str]:
    """What to say of the others: one line for each that is about stored messages, one for all the rest."""
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
