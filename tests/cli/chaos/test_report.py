"""Reports: readable without a browser, well-formed with one, and of bounded size whatever the run."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from geminga.cli.arguments.parser import Parser
from geminga.cli.chaos.chaos import run
from geminga.cli.chaos.checking.check import check
from geminga.cli.chaos.checking.history import Doing, Fault, History, Jump, Record, Sample, Taking
from geminga.cli.chaos.checking.history_file import InvalidHistory, Told, read, written
from geminga.cli.chaos.checking.junit import junit
from geminga.cli.chaos.checking.picture import picture
from geminga.cli.chaos.checking.report import COLUMNS, Report, html_report, text_report
from geminga.cli.chaos.checking.scenario import Duration, Expect, Scenario
from tests.cli.chaos.story import BEGAN_MS, Story

EVIL = '"><script>alert(1)</script>&'


def report(story: Story, **scenario: object) -> Report:
    made = Scenario(name="mine", **scenario)  # type: ignore[arg-type]
    return Report(made, story.history, check(story.history, made.expect), "geminga chaos run mine --seed 1")


def test_a_run_that_passed() -> None:
    story = Story(delay_ms=500)
    story.deliver_all(1000)
    text = text_report(report(story))
    assert text.startswith("mine: passed\n")
    assert "sent            10, of which 10 confirmed" in text
    assert re.search(r"late by +median \d+ ms", text)
    assert "What was done:" not in text
    assert text.endswith("Again: geminga chaos run mine --seed 1\n")


def test_a_run_that_is_wrong_says_what_and_how_many() -> None:
    story = Story(messages=30)
    story.do(1500, "kill", "crash")
    found = report(story)
    text = text_report(found)
    assert text.startswith("mine: wrong\n")
    assert "topic 0, s: p0 number 0, sent at 0.00 s: never delivered" in text
    assert "and 25 more" in text
    assert "1   1.50 s  kill" in text
    assert found.reasons == [
        ("Wrong", ["lost: 30, expected 0 at most (receipted, and never acknowledged by the end)"])
    ]


def test_a_terminal_of_80_columns_is_wide_enough() -> None:
    story = Story(messages=30, delay_ms=987_654)
    story.history.faults.append(Fault(text="fault " + "wire/latency " * 9, at_ms=BEGAN_MS, needs_hits=1))
    story.do(1500, "long-winded " * 20, "event")
    story.deliver_all(1_234_567)
    story.deliver(3, 2_345_678)
    text = text_report(report(story, threads=[f"apache/pulsar#{n}" for n in range(20_000, 20_020)]))
    assert COLUMNS == 80
    assert [line for line in text.splitlines() if len(line) > 80] == []
    assert text.count("long-winded") == 20


def test_notes_are_in_both_reports() -> None:
    story = Story()
    story.deliver_all()
    story.history.faults.append(Fault(text="fault wire/<cut>", at_ms=BEGAN_MS))
    found = report(story)
    assert "\n  Note:\n    fault wire/<cut>: took no effect; with needs_hits = 1 " in text_report(found)
    assert "<h2>Note</h2><ul><li>fault wire/&lt;cut&gt;: took no effect" in html_report(found)
    assert "Note" not in text_report(report(Story()))


def test_a_history_is_read_as_it_was_written() -> None:
    story = Story(messages=4, delay_ms=500)
    # What is planned and was not sent is not written.
    story.history.sent[0][1].first_ms = story.history.sent[0][1].receipt_ms = 0
    story.deliver_all(2000)
    story.crash(3000)
    story.probe(100, late_ms=1.5)
    # As a step's length comes from the scenario.
    story.history.takings.append(Taking(what="restore", asked_ms=5, done_ms=6))
    story.history.jumps.append(Jump(asked_ms=5, length_ms=Duration(7), done_ms=6, from_ms=5, to_ms=12))
    made = report(story, expect=Expect(late=Duration(1000)))
    told = Told(made.scenario, made.history, made.replay, "another")
    lines = list(written(told))
    again = read(lines)
    assert list(written(again)) == lines
    assert again.scenario == made.scenario
    assert check(again.history, again.scenario.expect) == made.findings
    with pytest.raises(InvalidHistory, match="line 19: the file ends here"):
        read(lines[:-1])
    with pytest.raises(InvalidHistory, match="line 3: "):
        read([*lines[:2], b'{"is":"sent","producer":7,"number":0}', *lines[3:]])
    for other in (b"[]", b"hello\n", b'text = "a scenario"\n', lines[1]):
        with pytest.raises(
            InvalidHistory, match="^line 1: expected the first line of a history, as 'geminga"
        ):
            read([other])
    with pytest.raises(InvalidHistory, match="^the file is empty$"):
        read([])


def test_a_history_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(Parser, ["check", str(tmp_path / "none.jsonl")]) == 1
    assert (
        capsys.readouterr().err == f"geminga chaos check: {tmp_path}/none.jsonl: No such file or directory\n"
    )
    assert run(Parser, ["check", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"geminga chaos check: {tmp_path}: Is a directory\n"


def test_the_example_of_the_page_is_a_history() -> None:
    page = (Path(__file__).parents[3] / "docs" / "chaos-history.md").read_text()
    lines = page.partition("```json\n")[2].partition("```")[0].encode().splitlines(keepends=True)
    told = read(lines)
    found = check(told.history, told.scenario.expect)
    assert (found.sent, found.deliveries, found.verdict(told.scenario.expect)) == (1, 1, "passed")
    kinds = {record.__struct_config__.tag for record in Record.__subclasses__()}
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.M)) - {"is"} == kinds


def test_verdicts_for_ci() -> None:
    passed, wrong, untold = Story(), Story(), Story()
    passed.deliver_all()
    untold.deliver_all()
    untold.history.broken.append(f"{EVIL}\0")
    root = ElementTree.fromstring(junit([report(passed), report(wrong), report(untold)]))
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("3", "1", "1")
    assert [[(one.tag, one.get("type")) for one in case] for case in root] == [
        [],
        [("failure", "wrong")],
        [("error", "not shown")],
    ]
    assert root[2][0].get("message") == EVIL


def test_pages_are_well_formed_and_run_nothing() -> None:
    story = Story()
    story.deliver_all()
    story.history.doings.append(Doing(at_ms=BEGAN_MS + 5, text=EVIL, kind="event"))
    page = html_report(report(story, text=EVIL, threads=[EVIL]))
    assert "<script" not in page
    ElementTree.fromstring(picture(story.history))


def test_words_of_the_picture_have_ten_pixels_at_any_width() -> None:
    """It is scaled to the page's width, but to no less than it has at 50rem."""
    story = Story()
    story.deliver_all()
    page = html_report(report(story))
    [least_rem] = re.findall(r"svg\{width:100%;min-width:(\d+)rem\}", page)
    [width] = re.findall(r'viewBox="0 0 (\d+) ', page)
    sizes = re.findall(r"font:(\d+)px", page.partition("<svg")[2])
    assert sizes
    assert min(map(int, sizes)) * int(least_rem) * 16 / int(width) >= 10


def test_marks_do_not_cross_what_the_lines_mean() -> None:
    story = Story()
    story.history.doings = [Doing(at_ms=BEGAN_MS + 9000 * n, text="kill", kind="crash") for n in range(7)]
    root = ElementTree.fromstring(picture(story.history))
    texts = [float(one.get("y", "")) for one in root.iter("{http://www.w3.org/2000/svg}text")]
    words = {
        float(one.get("y", "")) for one in root.iter() if one.text in {"confirmed", "backlog", "buckets"}
    }
    marks = [one.get("d", "") for one in root.iter() if one.get("class") == "mark"]
    assert len(marks) == 7
    for from_y, length in re.findall(r"M\S+ (\S+?)v(\d+)", "".join(marks)):
        assert not any(float(from_y) <= y <= float(from_y) + int(length) for y in words)
    # The numbers of the marks are above all titles.
    assert sum(1 for y in texts if y < min(words) - 10) == 7


def test_a_picture_of_nothing() -> None:
    ElementTree.fromstring(picture(History(BEGAN_MS, ended_ms=BEGAN_MS)))


def test_a_picture_of_a_long_run_is_small() -> None:
    story = Story(messages=20_000, delay_ms=100)
    story.deliver_all(1000)
    story.history.samples = [
        Sample(at_ms=BEGAN_MS + 12 * n, backlog=n, delayed=n // 2, buckets=n % 9) for n in range(5000)
    ]
    story.history.doings = [Doing(at_ms=BEGAN_MS + n, text="kill", kind="crash") for n in range(5000)]
    drawn = picture(story.history)
    ElementTree.fromstring(drawn)
    assert len(drawn) < 500_000
