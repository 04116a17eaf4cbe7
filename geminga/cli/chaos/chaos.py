"""`geminga chaos`: run a scenario, check a history again, list the scenarios that are shipped, print one."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from geminga.cli.arguments.parser import EXIT_FAILED, EXIT_OK, EXIT_USAGE, Parser

if TYPE_CHECKING:
    from geminga.cli.chaos.checking.history import History
    from geminga.cli.chaos.checking.history_file import Told
    from geminga.cli.chaos.checking.report import Report
    from geminga.cli.chaos.checking.scenario import Scenario

EXIT_WRONG: Final = 3
"""The broker broke a promise."""
EXIT_LATE: Final = 5
"""Nothing was wrong, and something came later than the scenario allows."""
EXIT_NOT_SHOWN: Final = 6
"""Neither was found, and the run could not tell."""
EXIT_BY_VERDICT: Final = {
    "passed": EXIT_OK,
    "not shown": EXIT_NOT_SHOWN,
    "late": EXIT_LATE,
    "wrong": EXIT_WRONG,
}
"""From the best to the gravest."""
FACTOR_MAX: Final = 100_000
REPEAT_MAX: Final = 10_000


def run(kind: type[Parser], arguments: Sequence[str]) -> int:
    from geminga.child_broker import BrokerFailed
    from geminga.cli.admin.admin_http import RequestFailed
    from geminga.cli.chaos.checking.history_file import InvalidHistory
    from geminga.cli.chaos.checking.scenario import InvalidScenario
    from geminga.cli.client.errors import ClientError

    flags = _parser(kind).parse_strictly(arguments)
    try:
        return _ACTIONS[flags.action](flags)
    except InvalidScenario as error:
        print(f"geminga chaos {flags.action}: {error}", file=sys.stderr)
        return EXIT_USAGE
    except BrokenPipeError:
        raise  # only our own output is a pipe: main ends the program
    except OSError as error:
        print(f"geminga chaos {flags.action}: {_text_of(error)}", file=sys.stderr)
        return EXIT_FAILED
    except (InvalidHistory, BrokerFailed, RequestFailed, ClientError) as error:
        print(f"geminga chaos {flags.action}: {error}", file=sys.stderr)
        return EXIT_FAILED


def _text_of(error: OSError) -> str:
    named = error.filename is not None and error.strerror is not None
    return f"{error.filename}: {error.strerror}" if named else str(error)


def _parser(kind: type[Parser]) -> Parser:
    parser = kind(
        prog="geminga chaos",
        description="Break a broker on purpose under load, and check that it keeps what a queue promises.",
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
    made.add_argument("--repeat", type=int, default=1, metavar="N", help="N runs, each with the next seed")
    made.add_argument("--history", type=Path, metavar="FILE", help="write down what was seen, for 'check'")
    _add_output(made)
    made.add_argument("--quiet", action="store_true", help="no progress")
    made.add_argument(
        "--against",
        metavar="URL",
        help="a broker that runs already, Pulsar's too: pulsar://HOST:PORT; what needs our own is left out",
    )
    made.add_argument("--web", metavar="URL", help="its admin API (default: found beside it)")
    made.add_argument("--data-dir", type=Path, metavar="DIR", help="keep the broker's data here")
    again = action("check", "judge a history that 'run --history' has written, without a broker")
    again.add_argument("file", type=Path, metavar="FILE")
    again.add_argument("--out", type=Path, metavar="FILE", help="write the report with a picture")
    _add_output(again)
    action("list", "the scenarios that are shipped")
    show = action("show", "print a scenario, to be copied and changed")
    show.add_argument("scenario", metavar="SCENARIO")
    return parser


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print what was found as JSON, a line a run")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write the verdicts as JUnit XML")


def _new_file(scenario: str) -> Path:
    """A new file outside of the working directory, which may be a checkout."""
    descriptor, name = tempfile.mkstemp(".html", f"chaos-{scenario}-")
    os.close(descriptor)
    return Path(name)


def _run(flags: Any) -> int:
    from geminga.cli.chaos.checking.scenario import InvalidScenario
    from geminga.cli.chaos.shipped.scenarios import scenario

    if not all(0 < factor <= FACTOR_MAX for factor in (flags.scale, flags.pace, flags.slack)):
        raise InvalidScenario(f"--scale, --pace, --slack: expected a number above 0, at most {FACTOR_MAX}")
    if not 1 <= flags.repeat <= REPEAT_MAX:
        raise InvalidScenario(f"--repeat: expected a number of runs, at most {REPEAT_MAX}")
    if flags.data_dir and flags.repeat > 1:
        raise InvalidScenario("--data-dir: each of several runs needs a directory of its own")
    wanted = scenario(flags.scenario).scaled(flags.scale, flags.seed, flags.pace).with_slack(flags.slack)
    # Before the run, which may take minutes.
    for file in (flags.out, flags.history, flags.junit):
        if file is not None and not os.access(file.parent, os.W_OK):
            raise OSError(f"{file.parent} cannot be written to: name another file")
        if file is not None and (file.is_dir() or (file.exists() and not os.access(file, os.W_OK))):
            raise OSError(f"{file} cannot be written to: name another file")
    with _ends_as_ctrl_c():
        return _runs(wanted, flags)


@contextlib.contextmanager
def _ends_as_ctrl_c() -> Iterator[None]:
    """A job that CI cancels, or whose terminal is closed, gets SIGTERM or SIGHUP: it reports, too, and leaves
    no data behind.
    """

    def end(number: int, frame: object) -> None:
        signal.raise_signal(signal.SIGINT)

    # Where SIGINT is ignored there is nothing that it could be passed on to.
    ends = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    names = [name for name in ("SIGTERM", "SIGHUP") if ends and hasattr(signal, name)]
    numbers = [number for name in names if signal.getsignal(number := signal.Signals[name]) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def _runs(wanted: Scenario, flags: Any) -> int:
    from geminga.cli.chaos.checking.history_file import Told

    reports: list[Report] = []
    all_saved = True
    for seed in range(wanted.seed, wanted.seed + flags.repeat):
        one = wanted.with_seed(seed)
        history, interrupt = _carried_out(one, flags)
        told = Told(one, history, _replay(flags, seed), flags.against or "")
        if flags.history:
            path = _numbered(flags.history, seed, flags.repeat)
            all_saved &= _saved(path, partial(_write, path, told))
        out = _numbered(flags.out, seed, flags.repeat) if flags.out else None
        report, is_saved = _report(told, out, as_json=flags.json, is_wanted=True)
        reports.append(report)
        all_saved &= is_saved & _saved(flags.junit, partial(_write_junit, flags.junit, reports))
        if interrupt is not None:
            raise interrupt
    if flags.repeat > 1 and not flags.json:
        for verdict in EXIT_BY_VERDICT:
            seeds = [str(report.scenario.seed) for report in reports if report.verdict == verdict]
            if seeds:
                print(f"{verdict}: {len(seeds)} of {len(reports)}, seeds {', '.join(seeds)}")
    return _exit_code(reports, all_saved=all_saved)


def _saved(path: Path | None, write: Callable[[], object]) -> bool:
    """Whether it could be written. A full disk takes a file, and not the verdict of a run of an hour."""
    try:
        write()
    except OSError as error:
        place = path or error.filename or "the report"
        print(f"geminga chaos: {place}: {error.strerror or error}", file=sys.stderr)
        return False
    return True


def _carried_out(scenario: Scenario, flags: Any) -> tuple[History, BaseException | None]:
    """What was seen, however the run ended; and the error or the Ctrl-C that is still to be raised. Raises
    `InvalidScenario` if there was no run.
    """
    import trio

    from geminga.cli.chaos.checking.scenario import InvalidScenario
    from geminga.cli.chaos.running.run import Run
    from geminga.cli.chaos.running.target import RemoteTarget, child_target

    say: Callable[[str], None] = (lambda _: None) if flags.quiet else _say
    run: Run | None = None
    try:
        if flags.against:
            from geminga.cli.client.addresses import service_url, web_url

            run = Run(
                scenario,
                RemoteTarget(service_url(flags.against), web_url(flags.web or flags.against)),
                say,
            )
            trio.run(run.run)
        else:
            with child_target(scenario, flags.data_dir) as target:
                run = Run(scenario, target, say)
                trio.run(run.run)
    except BaseException as error:
        first = _first(error) if isinstance(error, BaseExceptionGroup) else error
        if run is None or isinstance(first, InvalidScenario):
            raise first from None
        why = "by Ctrl-C or a signal" if isinstance(first, KeyboardInterrupt) else str(first)
        run.history.broken.append(f"the run was broken off: {why or type(first).__name__}")
        return run.history, first
    return run.history, None


def _check(flags: Any) -> int:
    from geminga.cli.chaos.checking.history_file import InvalidHistory, lines_of, read

    try:
        with flags.file.open("rb") as file:
            told = read(lines_of(file))
    except InvalidHistory as error:
        raise InvalidHistory(f"{flags.file}: {error}") from None
    report, is_saved = _report(told, flags.out, as_json=flags.json, is_wanted=flags.out is not None)
    is_saved &= _saved(flags.junit, partial(_write_junit, flags.junit, [report]))
    return _exit_code([report], all_saved=is_saved)


def _report(told: Told, out: Path | None, *, as_json: bool, is_wanted: bool) -> tuple[Report, bool]:
    """What a history says, printed, and written with a picture to this file, or to a new one; and whether it
    could be. Not `is_wanted`: printed only.
    """
    from geminga.cli.chaos.checking.check import check
    from geminga.cli.chaos.checking.report import Report, html_report, text_report

    report = Report(
        told.scenario,
        told.history,
        check(told.history, told.scenario.expect),
        told.replay,
        told.against,
    )

    def write() -> None:
        nonlocal out
        out = out or _new_file(report.scenario.name)
        out.write_text(html_report(report), encoding="utf-8", errors="backslashreplace")

    is_saved = _saved(out, write) if is_wanted else True
    if not is_saved:
        out = None
    if as_json:
        import json

        import msgspec

        found = msgspec.to_builtins(report.findings)
        reasons = {name.lower(): texts for name, texts in report.reasons}
        where = str(out.absolute()) if out is not None else ""
        seed = report.scenario.seed
        head = {"verdict": report.verdict, "seed": seed, "reasons": reasons, "report": where}
        print(json.dumps(head | found), flush=True)
    else:
        print(text_report(report), end="")
        if out is not None:
            print(f"  Report with a picture: {out}")
    return report, is_saved


def _write(path: Path, told: Told) -> None:
    from geminga.cli.chaos.checking.history_file import written

    with path.open("wb") as file:
        file.writelines(written(told))


def _write_junit(path: Path | None, reports: Sequence[Report]) -> None:
    if path is not None:
        from geminga.cli.chaos.checking.junit import junit

        path.write_text(junit(reports), encoding="utf-8", errors="xmlcharrefreplace")


def _numbered(path: Path, seed: int, runs: int) -> Path:
    """With the seed in its name, if there are several."""
    return path if runs == 1 else path.with_name(f"{path.stem}-{seed}{path.suffix}")


def _exit_code(reports: Sequence[Report], *, all_saved: bool) -> int:
    """Of the gravest verdict. Where all have passed: whether all files could be written."""
    words = [report.verdict for report in reports]
    code = next((code for word, code in reversed(EXIT_BY_VERDICT.items()) if word in words), EXIT_OK)
    return code if code or all_saved else EXIT_FAILED


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
    command = f"geminga chaos run {flags.scenario} --seed {seed}{scale}{against}"
    # A file's name may be no UTF-8, and what has it in it could not be written.
    return os.fsencode(command).decode("utf-8", "replace")


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


_ACTIONS: Final[dict[str, Callable[[Any], int]]] = {
    "run": _run,
    "check": _check,
    "list": _list,
    "show": _show,
}
