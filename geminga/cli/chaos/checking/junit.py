"""Runs as JUnit XML, for CI. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape, quoteattr

from geminga.cli.chaos.checking.report import Report, text_report

_NO_XML = {
    number: None
    for number in (*range(32), *range(0xD800, 0xE000), 0xFFFE, 0xFFFF)
    if chr(number) not in "\t\n\r"
}


def junit(reports: Sequence[Report]) -> str:
    """A test case for each run. A run that is wrong or late is a failure, with the verdict as its type; one
    that could not tell is an error.
    """
    words = [report.verdict for report in reports]
    seconds = sum(_seconds(report) for report in reports)
    cases = "".join(_case(report) for report in reports)
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<testsuite name="geminga chaos" tests="{len(reports)}" '
        f'failures="{words.count("wrong") + words.count("late")}" errors="{words.count("not shown")}" '
        f'time="{seconds:.3f}">{cases}</testsuite>\n'
    )


def _seconds(report: Report) -> float:
    return (report.history.ended_ms - report.history.began_ms) / 1000


def _case(report: Report) -> str:
    name = f"{report.scenario.name} seed {report.scenario.seed}".translate(_NO_XML)
    begin = f'<testcase classname="geminga.chaos" name={quoteattr(name)} time="{_seconds(report):.3f}">'
    if report.verdict == "passed":
        return f"{begin}</testcase>"
    element = "error" if report.verdict == "not shown" else "failure"
    message = "; ".join(text for _, texts in report.reasons for text in texts).translate(_NO_XML)
    return (
        f'{begin}<{element} type="{report.verdict}" message={quoteattr(message)}>'
        f"{escape(text_report(report).translate(_NO_XML))}</{element}></testcase>"
    )
