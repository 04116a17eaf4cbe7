"""What a run has found, as text for a terminal and as one HTML page with the picture. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple

from geminga.cli.chaos.checking.findings import WRONG, Findings, Verdict
from geminga.cli.chaos.checking.history import History
from geminga.cli.chaos.checking.picture import picture, shown_doings
from geminga.cli.chaos.checking.scenario import Scenario

COLUMNS: Final = 80
_NAME_COLUMNS: Final = 16
_PAGE_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:1.5rem auto;padding:0 1rem;color:#1c2430}"
    "h1{font-size:1.35rem}h2{font-size:1.05rem;margin-top:1.6rem}td,th{padding:.15rem .8rem .15rem 0;"
    "text-align:left;vertical-align:top}code,pre{background:#f2f4f7;padding:.1rem .3rem}pre{padding:.6rem;"
    "white-space:pre-wrap;overflow-wrap:anywhere}.passed{color:#17693a}.wrong{color:#b3261e}.late,.not-shown{color:#8a5a00}.picture{overflow-x:auto}"
    "svg{width:100%;min-width:50rem}"
)


class Report(NamedTuple):
    scenario: Scenario
    history: History
    findings: Findings
    replay: str
    """The command that does it again."""
    against: str = ""
    """What broker it was, if it was not ours."""

    @property
    def verdict(self) -> Verdict:
        return self.findings.verdict(self.scenario.expect)

    @property
    def reasons(self) -> list[tuple[str, list[str]]]:
        """For what the run has not passed, by words."""
        found, expect = self.findings, self.scenario.expect
        rows = (
            ("Wrong", found.wrong(expect)),
            ("Late", found.late(expect)),
            ("Not shown", found.untold(expect)),
        )
        return [(name, texts) for name, texts in rows if texts]


def text_report(report: Report) -> str:
    """For a terminal of 80 columns."""
    lines = [*_wrapped(f"{report.scenario.name}: {report.verdict}", 0, 0), ""]
    for name, value in _facts(report):
        lines += _wrapped(f"{name:<{_NAME_COLUMNS}}{value}", 2, 2 + _NAME_COLUMNS)
    for name, texts in _examples(report.findings):
        lines += ["", f"  {name}:", *_all_wrapped(texts)]
    for name, texts in report.reasons:
        lines += ["", f"  {name}:", *_all_wrapped(texts)]
    if report.findings.notes:
        lines += ["", "  Note:", *_all_wrapped(report.findings.notes)]
    lines += ["", "  What was done:"] if _done(report) else []
    for number, at_ms, text in _done(report):
        lines += _wrapped(f"{number:>2} {_seconds(report, at_ms)}  {text}", 4, 18)
    lines += ["", *_wrapped(f"Again: {report.replay}", 2, 9)]
    return "\n".join(lines) + "\n"


def _all_wrapped(texts: Sequence[str]) -> list[str]:
    return [line for text in texts for line in _wrapped(text, 4, 6)]


def _wrapped(text: str, indent: int, next_indent: int) -> list[str]:
    # What a broker or a file says goes to a terminal, which would obey it.
    seen = "".join(one if one.isprintable() or one in "\n\t" else ascii(one)[1:-1] for one in text)
    return textwrap.wrap(
        seen,
        COLUMNS,
        initial_indent=" " * indent,
        subsequent_indent=" " * next_indent,
        break_on_hyphens=False,
    )


def html_report(report: Report) -> str:
    """One page that needs nothing else: the picture is in it."""
    scenario = report.scenario
    facts = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in _facts(report)
    )
    done = "".join(
        f"<tr><td>{number}</td><td>{_seconds(report, at_ms)}</td><td>{escape(text)}</td></tr>"
        for number, at_ms, text in _done(report)
    )
    return "".join(
        (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width">',
            f"<title>{escape(scenario.name)}: {report.verdict}</title>",
            f"<style>{_PAGE_STYLE}</style></head><body><main>",
            f'<h1>{escape(scenario.name)}: <span class="{report.verdict.replace(" ", "-")}">'
            f"{report.verdict}</span></h1>",
            f"<p>{escape(scenario.text)}</p>",
            *(_list(name, texts) for name, texts in report.reasons),
            f"<table>{facts}</table>",
            *(_list(name, texts) for name, texts in _examples(report.findings)),
            _list("Note", report.findings.notes),
            # Scaled to the width of a phone its words would have five pixels.
            '<div class="picture" role="region" aria-label="The course of the run" tabindex="0">',
            f"{picture(report.history)}</div>",
            f"<h2>What was done</h2><table>{done}</table>",
            f"<h2>Again</h2><pre>{escape(report.replay)}</pre></main></body></html>\n",
        )
    )


def _facts(report: Report) -> list[tuple[str, str]]:
    found, history = report.findings, report.history
    rows = [
        ("sent", f"{found.sent:,}, of which {found.confirmed:,} confirmed"),
        ("delivered", f"{found.deliveries:,} times, {found.again:,} of them again"),
    ]
    if found.again_after_crash:
        text = f"or fence, or seek: {found.again_after_crash:,} again that were acknowledged"
        rows.append(("after a crash", text))
    rows += [(name.replace("_", " "), f"{examples.count:,}") for name, examples in found.counts.items()]
    if found.unconfirmed:
        rows.append(("unconfirmed", f"{found.unconfirmed:,} acknowledged, and not answered"))
    if found.taken:
        rows.append(("taken", f"{found.taken:,} confirmed after a copy, and gone with its restore"))
    late = _times(found.late_ms) if found.late_ms else "no message was delayed"
    rows.append(("late by", late))
    if found.prompt_ms:
        rows.append(("prompt ones", f"after {_times(found.prompt_ms)}"))
    if found.receipt_ms:
        rows.append(("receipts", f"after {_times(found.receipt_ms)}"))
    rows += [
        (f"hits {number}", f"{one.hits:,} of {one.text}") for number, one in enumerate(history.faults, 1)
    ]
    rows += [
        ("machine", f"held up {found.machine_waits_ms:,} ms, a timer {found.timer_late_ms:,} ms at worst"),
        ("took", f"{(history.ended_ms - history.began_ms) / 1000:.1f} s"),
        ("seed", str(report.scenario.seed)),
    ]
    if report.against:
        rows.append(("against", report.against))
    if report.scenario.threads:
        rows.append(("threads", ", ".join(report.scenario.threads)))
    return rows


def _times(times_ms: Sequence[int]) -> str:
    return "median {:,} ms, 99 of 100 {:,} ms, at most {:,} ms".format(*times_ms)


def _examples(found: Findings) -> list[tuple[str, list[str]]]:
    """Of each kind that there was, with how many more there were."""
    rows = []
    for name, examples in found.counts.items():
        more = examples.count - len(examples.texts)
        texts = [*examples.texts, f"and {more:,} more"] if more else examples.texts
        if texts:
            rows.append((f"{name.replace('_', ' ')} ({WRONG[name]})", texts))
    return rows


def _done(report: Report) -> list[tuple[int, int, str]]:
    return [(number, doing.at_ms, doing.text) for number, doing in enumerate(shown_doings(report.history), 1)]


def _seconds(report: Report, at_ms: int) -> str:
    return f"{report.history.second(at_ms):>8}"


def _list(title: str, texts: Sequence[str]) -> str:
    if not texts:
        return ""
    return f"<h2>{escape(title)}</h2><ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>"
