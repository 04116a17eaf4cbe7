"""The crash campaign of topics: power cuts and faults at every operation of trimming, expiry, and deletion.

    python -m simulation.topic.topic_campaign --points 20000 --seed 1
    python -m simulation.topic.topic_campaign --workloads deleting,sharing --points 0

Managed ledger, cursors, delayed index, metadata and bookie stand on one simulated disk. Every operation of
every script is broken in every way (`--workloads none` leaves this out), then there are `--points` random
lives; both with a real clock and with a virtual one that jumps, of whose lives there are `--jumps`. `--clock`
takes one of the two alone. On a failure: exit code 1, and what broke, the last operations, and the command
that runs this one case again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from simulation.campaign.campaign import campaign_parser, chosen_scripts, random_cases, run_command
from simulation.topic.cases import WAYS, run_case, scripted_cases
from simulation.topic.scripts import SCRIPTS


def main(arguments: Sequence[str] | None = None) -> int:
    parser = campaign_parser("simulation.topic.topic_campaign", __doc__, list(SCRIPTS), nested_max=2)
    parser.add_argument(
        "--jumps", type=int, default=2000, help="random lives under the virtual clock (default: %(default)s)"
    )
    parser.add_argument("--clock", choices=("real", "virtual"), help="only under this one")
    parser.add_argument("--ways", default=",".join(WAYS), help="ways to break it (default: %(default)s)")
    return run_command(parser, parser.parse_args(arguments), run_case, _titled_cases)


def _titled_cases(options: argparse.Namespace) -> list[tuple[str, list[str]]]:
    scripts, ways = chosen_scripts(options, list(SCRIPTS)), options.ways.split(",")
    titled = []
    if options.clock != "virtual":
        titled += [
            ("every operation", scripted_cases(scripts, ways)),
            ("random lives", random_cases(options.points, options.seed)),
        ]
    if options.clock != "real":
        titled += [
            ("every operation, with jumps", scripted_cases(scripts, ways, jumps=True)),
            ("random lives, with jumps", random_cases(options.jumps, options.seed, kind="jumps")),
        ]
    return titled


if __name__ == "__main__":
    sys.exit(main())
