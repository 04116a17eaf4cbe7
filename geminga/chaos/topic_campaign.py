"""The crash campaign of topics: power cuts and faults at every operation of trimming, expiry, and deletion.

    python -m geminga.chaos.topic_campaign --points 20000 --seed 1
    python -m geminga.chaos.topic_campaign --workloads deleting,sharing --points 0

Managed ledger, cursors, delayed index, metadata and bookie stand on one simulated disk. First every operation
of every script in every way (`--workloads none` leaves this out), then `--points` random lives. On a failure:
exit code 1, and what broke, the last operations, and the command that runs this one case again.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from geminga.chaos.crash_campaign import campaign
from geminga.chaos.crash_cases import CaseFailed, Tally
from geminga.chaos.topic_cases import WAYS, random_cases, run_case, run_cases, scripted_cases
from geminga.chaos.topic_scripts import SCRIPTS
from geminga.clock import RealClock


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m geminga.chaos.topic_campaign", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--points", type=int, default=10_000, help="random lives (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workloads", default="all", help=f"all, none, or some of {','.join(SCRIPTS)}")
    parser.add_argument("--ways", default=",".join(WAYS), help="ways to break it (default: %(default)s)")
    parser.add_argument("--nested", type=int, default=2, help="crashes in recoveries, one in the other")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--replay", metavar="CASE", help="only this case")
    options = parser.parse_args(arguments)
    try:
        if options.replay:
            run_case(options.replay, nested_max=options.nested)
            print(f"{options.replay}: all promises kept")
            return 0
        return _run(options)
    except CaseFailed as failure:
        print(f"FAILED {failure.text}")
        print(f"run again: {parser.prog} --nested {options.nested} --replay {failure.name}")
        return 1


def _run(options: argparse.Namespace) -> int:
    chosen = {"all": list(SCRIPTS), "none": []}.get(options.workloads, options.workloads.split(","))
    now_s = RealClock().monotonic_s
    whole = Tally()
    for title, cases in (
        ("every operation", scripted_cases(chosen, options.ways.split(","))),
        ("random lives", random_cases(options.points, options.seed)),
    ):
        if not cases:
            continue
        started_s = now_s()
        tally = campaign(
            iter(cases),
            len(cases),
            nested_max=options.nested,
            jobs=options.jobs,
            say=lambda text, title=title: print(f"{title}: {text}", flush=True),  # type: ignore[misc]
            run=run_cases,
        )
        seconds = now_s() - started_s
        print(
            f"{title}: {tally.cases} points in {seconds:.1f} s, {tally.crashes} crashes, "
            f"{tally.nested} of them in recoveries, {tally.faults} faults",
            flush=True,
        )
        whole.add(tally)
    print(f"{whole.cases} points, {whole.crashes} crashes, {whole.faults} faults: no promise broken")
    return 0


if __name__ == "__main__":
    sys.exit(main())
