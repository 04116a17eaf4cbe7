"""`geminga broker-stats`: figures of the broker as JSON, compact unless `--indent` is given."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from geminga.cli.verbs.rows.running import run_group
from geminga.cli.verbs.rows.verb import Flags, Verb, switch

INDENT = (switch("--indent", "-i", help="indent the JSON"),)


def _json(answer: Any, flags: Flags) -> Any:
    return answer if flags.indent else json.dumps(answer, separators=(",", ":"))


VERBS = {
    "monitoring-metrics": Verb("dump metrics", "GET", "broker-stats/metrics", INDENT, show=_json),
    "mbeans": Verb("dump figures of the process", "GET", "broker-stats/mbeans", INDENT, show=_json),
    "topics": Verb("dump statistics of all topics", "GET", "broker-stats/topics", INDENT, show=_json),
    "allocator-stats": Verb(
        "dump figures of a memory pool", "GET", "broker-stats/allocator-stats/{allocator}"
    ),
    "load-report": Verb("show the broker's load", "GET", "broker-stats/load-report"),
}
run = partial(run_group, "broker-stats", VERBS)
