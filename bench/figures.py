"""What a bench has found: measured on a directory of its own, shown a line each, and kept in a file."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

F = TypeVar("F", bound=Mapping[str, float])


def add_options(parser: argparse.ArgumentParser) -> None:
    """`--work-dir` and `--json`, for `measured` and `keep`."""
    parser.add_argument("--work-dir", help="where the data directory goes")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")


def measured(name: str, options: argparse.Namespace, measure: Callable[[str], F]) -> F:
    """What `measure` finds with an empty directory, which is gone on return. Kept if `--json` says so."""
    with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=options.work_dir) as directory:
        figures = measure(directory)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))
    return figures


def show(figures: Mapping[str, float]) -> None:
    """Names and numbers, the latter without needless places."""
    for name, value in figures.items():
        print(f"{name.replace('_', ' '):<24}{value:.2f}".removesuffix(".00"))
