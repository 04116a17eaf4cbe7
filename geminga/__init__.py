"""Geminga: a message broker that speaks Apache Pulsar's protocol.

For programs: `ChildBroker` runs a broker as a child process, `running` one in the program's own, `connected`
lets tests use one that runs already, `read_topic` reads a topic without Spark (with the extra
`geminga[spark]`). Everything else in the package may change with any version.
"""

TYPE_CHECKING = False  # importing `typing` would be most of the cost of this import
if TYPE_CHECKING:
    from geminga.child_broker import BrokerFailed as BrokerFailed
    from geminga.child_broker import ChildBroker as ChildBroker
    from geminga.pipeline import read_topic as read_topic
    from geminga.testing.connected import connected as connected
    from geminga.testing.running import running as running

__version__ = "0.1.0"

_PLACES = {
    "BrokerFailed": "geminga.child_broker",
    "ChildBroker": "geminga.child_broker",
    "connected": "geminga.testing.connected",
    "read_topic": "geminga.pipeline",
    "running": "geminga.testing.running",
}
"""Modules that are imported with the first use of a name."""

__all__ = ["BrokerFailed", "ChildBroker", "__version__", "connected", "read_topic", "running"]


def __getattr__(name: str) -> object:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(place), name)


def __dir__() -> list[str]:
    # What gets each listed name of each module, as freezegun does, would import Spark and pandas.
    return sorted({*globals(), *__all__} - {"read_topic"})
