"""How large and how fast each shipped scenario is run where many are."""

from __future__ import annotations

SIZES = {
    "bucket-loss": ("0.4", "2.5"),
    "deduplication": ("0.3", "2"),
    "power-loss": ("0.3", "2"),
    "pulsar-12091": ("0.3", "1"),
    "pulsar-22716": ("0.5", "3"),
    "pulsar-22802": ("0.5", "3"),
    "pulsar-23353": ("0.02", "4"),
    "pulsar-24603": ("0.02", "4"),
    "pulsar-25028": ("0.05", "8"),
    "pulsar-25996": ("0.5", "2"),
    "pulsar-26103": ("0.1", "4"),
    "pulsar-26178": ("0.4", "4"),
    "pulsar-26239": ("0.5", "3"),
}
"""(scale, pace) of those that need another than the others. A bucket has to be sealed by the time that it is
lost, and by the time that the broker is to be killed for it.
"""


def size_of(name: str) -> tuple[str, str]:
    return SIZES.get(name, ("0.2", "4"))
