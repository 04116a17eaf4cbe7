"""Where in a topic to begin, as flags name it."""

from __future__ import annotations

import argparse
import re

from geminga.cli.client.message import Position

_ID = re.compile(r"(\d{1,18}):(\d{1,18})(?::-?\d+)*")
EARLIEST: Position = (-1, -1)
LATEST: Position = (2**63 - 1, 2**63 - 1)


def start_position(text: str) -> Position:
    """`earliest`, `latest` or `ledger:entry`, with the partition behind it or not."""
    if text.lower() in ("earliest", "latest"):
        return EARLIEST if text.lower() == "earliest" else LATEST
    found = _ID.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"expected earliest, latest or ledger:entry, not {text!r}")
    return int(found[1]), int(found[2])
