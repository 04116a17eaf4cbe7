"""Tables that `PulsarTables.java` computes with Pulsar's own classes; comments in them name the columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

REFUSED = "refused"
"""What a cell says of an input that Pulsar's class refuses."""


def rows(table: str) -> list[list[str]]:
    """The cells of `<table>.tsv`, as they are written."""
    lines = Path(__file__).with_name(f"{table}.tsv").read_text().splitlines()
    return [line.split("\t") for line in lines if not line.startswith("#")]


def json_rows(table: str) -> list[list[Any]]:
    """The cells of a table in which all of them are JSON, but for REFUSED."""
    return [[cell if cell == REFUSED else json.loads(cell) for cell in row] for row in rows(table)]
