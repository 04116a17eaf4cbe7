"""Reports: readable without a browser, well-formed with one, and of bounded size whatever the run."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

from geminga.cli.chaos.checking.check import check
from geminga.cli.chaos.checking.history import Doing, History, Sample
from geminga.cli.chaos.checking.picture import picture
from geminga.cli.chaos.checking.report import Report, html_report, text_report
from geminga.cli.chaos.checking.scenario import Scenario
from tests.cli.chaos.test_check import BEGAN_MS, Story

EVIL = '"><script>alert(1)</script>&'


def report(story: Story, **scenario: object) -> Report:
    made = Scenario(name="mine", **scenario)  # type: ignore[arg-type]
    return Report(made, story.history, check(story.history, made.expect), "geminga chaos run mine --seed 1")


def test_a_run_that_passed() -> None:
    story = Story(delay_ms=500)
    story.deliver_all(1000)
    text = text_report(report(story))
    assert text.startswith("mine: passed\n")
    assert "sent          10, of which 10 confirmed" in text
    assert re.search(r"late by +median \d+ ms", text)
    assert text.endswith("Again: geminga chaos run mine --seed 1\n")


def test_a_run_that_failed_says_what_and_how_many() -> None:
    story = Story(messages=30)
    story.history.doings.append(Doing(BEGAN_MS + 1500, "kill", "crash"))
    found = report(story)
    text = text_report(found)
    assert text.startswith("mine: failed\n")
    assert "lost: 30, expected 0 at most" in text
    assert "topic 0, s: p0 number 0" in text
    assert "and 25 more" in text
    assert "1   1.50 s  kill" in text
    assert found.failures == ["lost: 30, expected 0 at most"]


def test_pages_are_well_formed_and_run_nothing() -> None:
    story = Story()
    story.deliver_all()
    story.history.doings.append(Doing(BEGAN_MS + 5, EVIL, "event"))
    page = html_report(report(story, text=EVIL, threads=[EVIL]))
    assert "<script" not in page
    ElementTree.fromstring(picture(story.history))


def test_a_picture_of_nothing() -> None:
    ElementTree.fromstring(picture(History(BEGAN_MS, ended_ms=BEGAN_MS)))


def test_a_picture_of_a_long_run_is_small() -> None:
    story = Story(messages=20_000, delay_ms=100)
    story.deliver_all(1000)
    story.history.samples = [Sample(BEGAN_MS + 12 * n, n, n // 2, n % 9) for n in range(5000)]
    story.history.doings = [Doing(BEGAN_MS + n, "kill", "crash") for n in range(5000)]
    drawn = picture(story.history)
    ElementTree.fromstring(drawn)
    assert len(drawn) < 500_000
