"""The crash campaign: the bookie loses power, and worse, at every operation and at random, and is checked.

    python -m simulation.bookie.crash_campaign --points 100000 --seed 1
    python -m simulation.bookie.crash_campaign --points 100000 --seed 1 --directories 2x3

First every operation of every script in every way (`--workloads none` leaves this out), then `--points`
random lives. Prints progress and a final figure. On a failure: exit code 1, and what broke, the faults
injected, the last operations, and the command that runs this one case again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from simulation.bookie.cases import WAYS, run_case, scripted_cases
from simulation.bookie.scripts import SCRIPTS
from simulation.campaign.campaign import campaign_parser, chosen_scripts, random_cases, run_command


def main(arguments: Sequence[str] | None = None) -> int:
    parser = campaign_parser("simulation.bookie.crash_campaign", __doc__, list(SCRIPTS), nested_max=3)
    parser.add_argument(
        "--directories",
        default="1x1",
        metavar="JxL",
        help="so many journal and ledger directories (default: %(default)s)",
    )
    return run_command(parser, parser.parse_args(arguments), run_case, _titled_cases)


def _titled_cases(options: argparse.Namespace) -> list[tuple[str, list[str]]]:
    layout = "" if options.directories == "1x1" else f"/{options.directories}"
    scripts = [f"{script}{layout}" for script in chosen_scripts(options, list(SCRIPTS))]
    return [
        ("every operation", scripted_cases(scripts, WAYS)),
        ("random lives", random_cases(options.points, options.seed, layout)),
    ]


if __name__ == "__main__":
    sys.exit(main())
