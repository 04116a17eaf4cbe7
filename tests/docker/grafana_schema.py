"""Our boards against the JSON schemas that Grafana publishes with its Foundation SDK.

    git clone https://github.com/grafana/grafana-foundation-sdk
    python -m tests.docker.grafana_schema grafana-foundation-sdk/jsonschema

Needs `jsonschema`, which is in none of our extras. Checks each board as a whole, and each panel's options,
its display options and its queries by the schema of the panel's own type. Then it breaks each board in a few
ways and expects the schemas to see it. Prints what is wrong, and exits with 1 if anything is.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

BOARDS = sorted((Path(__file__).resolve().parents[2] / "docker/grafana/dashboards").glob("*.json"))
Board = dict[str, Any]


class Schemas:
    def __init__(self, directory: Path) -> None:
        self._schemas = {
            path.name.partition(".")[0]: json.loads(path.read_text()) for path in directory.glob("*.json")
        }

    def check(self, kind: str, definition: str, value: object) -> Iterator[str]:
        """What is wrong with the value; nothing if the kind has no such definition."""
        import jsonschema

        schema = self._schemas[kind]
        if definition in schema["definitions"]:
            validator = jsonschema.validators.validator_for(schema)
            for error in validator({**schema, "$ref": f"#/definitions/{definition}"}).iter_errors(value):
                where = "/".join(map(str, error.absolute_path))
                yield f"{kind}.{definition} /{where}: {error.message[:200]}"

    def check_board(self, board: Board) -> Iterator[str]:
        yield from self.check("dashboard", "Dashboard", board)
        for panel in board["panels"]:
            custom = panel["fieldConfig"]["defaults"].get("custom", {})
            found = [
                *self.check(panel["type"], "Options", panel["options"]),
                *self.check(panel["type"], "FieldConfig", custom),
            ]
            for target in panel["targets"]:
                found += self.check("prometheus", "Dataquery", target)
            yield from (f"{panel['title']}: {text}" for text in found)


def _misspell_type(board: Board) -> None:
    board["panels"][0]["gridPos"]["w"] = "wide"


def _drop_legend(board: Board) -> None:
    panel = next(panel for panel in board["panels"] if panel["type"] == "timeseries")
    del panel["options"]["legend"]


def _unknown_variable(board: Board) -> None:
    board["templating"]["list"][0]["type"] = "datasrc"


def _wrong_version(board: Board) -> None:
    board["schemaVersion"] = "39"


BREAKS: tuple[Callable[[Board], None], ...] = (
    _misspell_type,
    _drop_legend,
    _unknown_variable,
    _wrong_version,
)


def main() -> int:
    parser = argparse.ArgumentParser(description="Check our boards against Grafana's JSON schemas.")
    parser.add_argument("directory", type=Path, help="jsonschema/ of the Foundation SDK")
    schemas = Schemas(parser.parse_args().directory)
    wrong = 0
    for path in BOARDS:
        board = json.loads(path.read_text())
        found = list(schemas.check_board(board))
        for text in found:
            print(f"{path.stem}: {text}")
        unseen = []
        for break_it in BREAKS:
            broken = copy.deepcopy(board)
            break_it(broken)
            if len(list(schemas.check_board(broken))) <= len(found):
                unseen.append(break_it.__name__)
        for name in unseen:
            print(f"{path.stem}: {name} was not seen")
        wrong += len(found) + len(unseen)
        print(
            f"{path.stem}: {len(board['panels'])} panels, {len(found)} wrong, {len(BREAKS)} broken on purpose"
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
