"""What a run has found, as text for a terminal and as one HTML page with the picture. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from geminga.cli.chaos.checking.check import Examples, Findings
from geminga.cli.chaos.checking.history import History
from geminga.cli.chaos.checking.picture import picture, shown_doings
from geminga.cli.chaos.checking.scenario import Scenario

_CHECKED = ("lost", "doubled", "out_of_order", "early", "damaged", "unknown")
_PAGE_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:1.5rem auto;padding:0 1rem;color:#1c2430}"
    "h1{font-size:1.35rem}h2{font-size:1.05rem;margin-top:1.6rem}td,th{padding:.15rem .8rem .15rem 0;"
    "text-align:left;vertical-align:top}code,pre{background:#f2f4f7;padding:.1rem .3rem}pre{padding:.6rem;"
    "overflow-x:auto}.passed{color:#17693a}.failed{color:#b3261e}.picture{overflow-x:auto}"
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
    def failures(self) -> list[str]:
        return self.findings.failures(self.scenario.expect)

    @property
    def verdict(self) -> str:
        return "failed" if self.failures else "passed"


def text_report(report: Report) -> str:
    """For a terminal of 80 columns."""
    lines = [f"{report.scenario.name}: {report.verdict}", ""]
    lines += [f"  {name:<14}{value}" for name, value in _facts(report)]
    for name, examples in _examples(report.findings):
        lines += ["", f"  {name}:"] + [f"    {text}" for text in examples.texts]
        lines += [f"    and {examples.count - len(examples.texts)} more"] * (
            examples.count > len(examples.texts)
        )
    if report.failures:
        lines += ["", "  Failed:"] + [f"    {text}" for text in report.failures]
    lines += ["", "  What was done:"]
    lines += [f"    {number:>2} {_seconds(report, at_ms)}  {text}" for number, at_ms, text in _done(report)]
    lines += ["", f"  Again: {report.replay}"]
    return "\n".join(lines) + "\n"


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
            f"<style>{_PAGE_STYLE}</style></head><body>",
            f'<h1>{escape(scenario.name)}: <span class="{report.verdict}">{report.verdict}</span></h1>',
            f"<p>{escape(scenario.text)}</p>",
            _list("Failed", report.failures),
            f"<table>{facts}</table>",
            *(_list(name, examples.texts) for name, examples in _examples(report.findings)),
            # Scaled to the width of a phone its words would have five pixels.
            '<div class="picture" role="region" aria-label="The course of the run" tabindex="0">',
            f"{picture(report.history)}</div>",
            f"<h2>What was done</h2><table>{done}</table>",
            f"<h2>Again</h2><pre>{escape(report.replay)}</pre></body></html>\n",
        )
    )


def _facts(report: Report) -> list[tuple[str, str]]:
    found, history = report.findings, report.history
    late = "no message was delayed"
    if found.late_ms:
        late = "median {} ms, 99 of 100 within {} ms, the latest {} ms".format(*found.late_ms)
    prompt = ""
    if found.prompt_ms:
        prompt = "median {} ms, 99 of 100 within {} ms, the latest {} ms".format(*found.prompt_ms)
    rows = [
        ("sent", f"{found.sent:,}, of which {found.confirmed:,} confirmed"),
        ("delivered", f"{found.deliveries:,} times, {found.again:,} of them again"),
        *((name.replace("_", " "), f"{getattr(found, name).count:,}") for name in _CHECKED),
        ("late by", late),
        *([("prompt ones", f"delivered after {prompt}")] if prompt else []),
        ("stored twice", f"{found.stored_twice:,} (sent again for want of a receipt)"),
        ("took", f"{(history.ended_ms - history.began_ms) / 1000:.1f} s"),
        ("seed", str(report.scenario.seed)),
    ]
    if found.again_after_crash:
        rows.insert(
            2,
            ("after a crash", f"or fence, or seek: {found.again_after_crash:,} again that were acknowledged"),
        )
    if report.against:
        rows.append(("against", report.against))
    if report.scenario.threads:
        rows.append(("threads", ", ".join(report.scenario.threads)))
    return rows


def _examples(found: Findings) -> list[tuple[str, Examples]]:
    return [
        (name.replace("_", " "), examples) for name in _CHECKED if (examples := getattr(found, name)).count
    ]


def _done(report: Report) -> list[tuple[int, int, str]]:
    return [(number, doing.at_ms, doing.text) for number, doing in enumerate(shown_doings(report.history), 1)]


def _seconds(report: Report, at_ms: int) -> str:
    return f"{(at_ms - report.history.began_ms) / 1000:6.2f} s"


def _list(title: str, texts: Sequence[str]) -> str:
    if not texts:
        return ""
    return f"<h2>{escape(title)}</h2><ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>"
