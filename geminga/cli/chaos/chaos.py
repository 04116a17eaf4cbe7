"""`geminga chaos`: run a scenario, list those that are shipped, print one."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from geminga.cli.arguments.parser import EXIT_FAILED, EXIT_OK, Parser

EXIT_FOUND: Final = 3
"""The run was carried out, and found what should not be."""
FACTOR_MAX: Final = 100_000


def run(kind: type[Parser], arguments: Sequence[str]) -> int:
    from geminga.child_broker import BrokerFailed
    from geminga.cli.admin.admin_http import RequestFailed
    from geminga.cli.chaos.checking.scenario import InvalidScenario
    from geminga.cli.client.errors import ClientError

    flags = _parser(kind).parse_strictly(arguments)
    try:
        return _ACTIONS[flags.action](flags)
    except (InvalidScenario, BrokerFailed, RequestFailed, ClientError, OSError) as error:
        print(f"geminga chaos {flags.action}: {error}", file=sys.stderr)
        return EXIT_FAILED


def _parser(kind: type[Parser]) -> Parser:
    parser = kind(
        prog="geminga chaos",
        description="Break a broker on purpose under load, and check that nothing was lost, doubled, early "
        "or out of order.",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def action(name: str, text: str) -> argparse.ArgumentParser:
        return actions.add_parser(name, help=text, description=text)

    made = action("run", "run a scenario on a broker of its own, and report")
    made.add_argument("scenario", metavar="SCENARIO", help="a name that 'list' shows, or a TOML file")
    made.add_argument("--seed", type=int, metavar="N", help="of what is drawn (default: the scenario's)")
    made.add_argument("--scale", type=float, default=1.0, metavar="F", help="so many times the messages")
    made.add_argument("--pace", type=float, default=1.0, metavar="F", help="steps so many times sooner")
    made.add_argument(
        "--slack",
        type=float,
        default=1.0,
        metavar="F",
        help="so many times the bounds of lateness, for a machine that does other work too",
    )
    made.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="the report (default: a file of its own in the directory for temporary files)",
    )
    made.add_argument("--json", action="store_true", help="print what was found as JSON")
    made.add_argument("--quiet", action="store_true", help="no progress")
    made.add_argument(
        "--against",
        metavar="URL",
        help="a broker that runs already, Pulsar's too: pulsar://HOST:PORT; what needs our own is left out",
    )
    made.add_argument("--web", metavar="URL", help="its admin API (default: found beside it)")
    made.add_argument("--data-dir", type=Path, metavar="DIR", help="keep the broker's data here")
    action("list", "the scenarios that are shipped")
    show = action("show", "print a scenario, to be copied and changed")
    show.add_argument("scenario", metavar="SCENARIO")
    return parser


def _new_file(scenario: str) -> Path:
    """A new file outside of the working directory, which may be a checkout."""
    descriptor, name = tempfile.mkstemp(".html", f"chaos-{scenario}-")
    os.close(descriptor)
    return Path(name)


def _run(flags: Any) -> int:
    import trio

    from geminga.cli.chaos.checking.check import check
    from geminga.cli.chaos.checking.history import History
    from geminga.cli.chaos.checking.report import Report, html_report, text_report
    from geminga.cli.chaos.checking.scenario import InvalidScenario
    from geminga.cli.chaos.running.run import run_scenario
    from geminga.cli.chaos.running.target import RemoteTarget, Target, child_target
    from geminga.cli.chaos.shipped.scenarios import scenario

    if not all(0 < factor <= FACTOR_MAX for factor in (flags.scale, flags.pace, flags.slack)):
        raise InvalidScenario(f"--scale, --pace, --slack: expected a number above 0, at most {FACTOR_MAX}")
    wanted = scenario(flags.scenario).scaled(flags.scale, flags.seed, flags.pace).with_slack(flags.slack)
    # Before the run, which may take minutes.
    directory = flags.out.parent if flags.out else Path(tempfile.gettempdir())
    if not os.access(directory, os.W_OK):
        raise InvalidScenario(f"{directory} cannot be written to: name another file with --out")

    def carried_out(target: Target) -> History:
        say: Callable[[str], None] = (lambda _: None) if flags.quiet else _say
        try:
            return trio.run(run_scenario, wanted, target, say)
        except BaseExceptionGroup as group:
            raise _first(group) from None

    if flags.against:
        from geminga.cli.client.addresses import service_url, web_url

        history = carried_out(RemoteTarget(service_url(flags.against), web_url(flags.web or flags.against)))
    else:
        with child_target(wanted, flags.data_dir) as target:
            history = carried_out(target)
    report = Report(
        wanted, history, check(history, wanted.expect), _replay(flags, wanted.seed), flags.against or ""
    )
    out = flags.out or _new_file(wanted.name)
    out.write_text(html_report(report), encoding="utf-8")
    if flags.json:
        import json

        import msgspec

        found = msgspec.to_builtins(report.findings)
        told = {"verdict": report.verdict, "failures": report.failures, "report": str(out.absolute())}
        print(json.dumps(told | found))
    else:
        print(text_report(report), end="")
        print(f"  Report with a picture: {out}")
    return EXIT_FOUND if report.failures else EXIT_OK


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What ended the run, out of the groups of its nurseries; Ctrl-C before all else."""
    interrupts = group.subgroup(KeyboardInterrupt)
    if interrupts is not None:
        return KeyboardInterrupt()
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


def _replay(flags: Any, seed: int) -> str:
    scale = f" --scale {flags.scale:g}" if flags.scale != 1 else ""
    scale += f" --pace {flags.pace:g}" if flags.pace != 1 else ""
    scale += f" --slack {flags.slack:g}" if flags.slack != 1 else ""
    against = f" --against {flags.against}" if flags.against else ""
    return f"geminga chaos run {flags.scenario} --seed {seed}{scale}{against}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _list(flags: Any) -> int:
    from geminga.cli.chaos.shipped.scenarios import names, scenario

    for name in names():
        print(f"{name:<22} {scenario(name).text}")
    return EXIT_OK


def _show(flags: Any) -> int:
    from geminga.cli.chaos.shipped.scenarios import text_of

    print(text_of(flags.scenario), end="")
    return EXIT_OK


_ACTIONS: Final[dict[str, Callable[[Any], int]]] = {"run": _run, "list": _list, "show": _show}
