"""Our boards and alert rules ask for metrics that exist; `python -m tests.docker.boards` runs every query."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
BOARDS = sorted((ROOT / "docker/grafana/dashboards").glob("*.json"))
RULES = ROOT / "docker/prometheus/rules.yml"
WORDS = {
    *("sum", "rate", "increase", "topk", "histogram_quantile", "vector", "by", "or", "on", "and", "unless"),
    "last_over_time",
    *(
        "label_values",
        "le",
        "topic",
        "type",
        "state",
        "instance",
        "subscription",
        "quantile",
        "success",
        "job",
    ),
    *("up", "ALERTS", "alertname"),
}
"""Functions, labels, and what Prometheus knows itself."""
PARTS = re.compile(r"_(bucket|sum|count)$")


def names_in(query: str) -> set[str]:
    bare = re.sub(r'"[^"]*"|\[[^\]]*\]|\$\w+', " ", query)
    return set(re.findall(r"[a-zA-Z_]\w*", bare)) - WORDS


def documented() -> set[str]:
    return set(re.findall(r"`(\w+)`", (ROOT / "docs/metrics.md").read_text()))


def variables_of(board: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {variable["name"]: variable for variable in board["templating"]["list"]}


def queries_of(board: dict[str, Any]) -> list[str]:
    return [target["expr"] for panel in board["panels"] for target in panel["targets"]]


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_a_board_asks_for_metrics_that_exist(path: Path) -> None:
    board = json.loads(path.read_text())
    known = documented()
    asked = [each["query"] for each in variables_of(board).values() if each["type"] == "query"]
    for query in [*queries_of(board), *asked]:
        assert names_in(query), query
        for name in names_in(query):
            assert name in known or PARTS.sub("", name) in known, (query, name)


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_a_board_is_one_that_grafana_provisions(path: Path) -> None:
    board = json.loads(path.read_text())
    assert board["uid"] == path.stem
    assert board["schemaVersion"] >= 36
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    places = []
    for panel in board["panels"]:
        assert {"type", "title", "gridPos", "targets", "fieldConfig", "options", "datasource"} <= set(panel)
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        places += [
            (x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
        ]
    assert len(set(places)) == len(places), "panels overlap"


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_a_board_shows_the_chosen_broker_and_rates_at_any_scrape_interval(path: Path) -> None:
    board = json.loads(path.read_text())
    variables = variables_of(board)
    assert variables["scrape_interval"]["current"]["value"] == "1m"
    for panel in board["panels"]:
        for target in panel["targets"]:
            query = target["expr"]
            chosen = query.count('{job="$job",instance=~"$instance"')
            assert chosen == query.count("{") >= 1, query
            windows = set(re.findall(r"\[(.*?)\]", query))
            # Four scrape intervals: those of a setting of Grafana, which few set, unless the query has one.
            assert windows <= {"$__rate_interval", "5m"}, query
            if "$__rate_interval" in windows:
                assert target["interval"] == "$scrape_interval", query
            used = {name.strip("{}") for name in re.findall(r"\$(\{?\w+\}?)", json.dumps(panel))}
            assert used <= {*variables, "__rate_interval"}, query


NOUNS = re.compile(r"seconds|bytes|throughput|entry_logs|buckets|messages|entries")


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_an_axis_has_one_unit(path: Path) -> None:
    """One had seconds and a share of them, and another buckets and messages, which are thousands each."""
    for panel in json.loads(path.read_text())["panels"]:
        units = set()
        for target in panel["targets"]:
            query = target["expr"]
            nouns = {
                found[0].replace("throughput", "bytes")
                for found in map(NOUNS.search, names_in(query.lower()))
                if found
            }
            rated = re.match(r"(?:\d+ \* )?(?:sum\S*\()?rate\(", query) is not None and "/" not in query
            units.add((*sorted(nouns), "seconds" in nouns and rated))
        assert len(units) == 1, (panel["title"], units)


def test_alerts_ask_for_metrics_that_exist_and_say_what_to_do() -> None:
    text = RULES.read_text()
    queries = re.findall(
        r"^        expr: (?:>-\n)?((?:.*\n)+?)(?=        (?:for|labels):)", text, re.MULTILINE
    )
    alerts = re.findall(r"- alert: (\w+)", text)
    assert len(queries) == len(alerts) == text.count("          next: ") == 9
    known = documented()
    for query in queries:
        for name in names_in(query):
            assert name in known or PARTS.sub("", name) in known, (query, name)
    tested = (ROOT / "docker/prometheus/rules_test.yml").read_text()
    assert set(alerts) == set(re.findall(r"alertname: (\w+)", tested))


def test_prometheus_loads_rules_and_no_tests_of_rules() -> None:
    """Prometheus does not start on a file that is none of rules."""
    config = ROOT / "docker/prometheus/prometheus.yml"
    patterns = re.findall(r"^  - (\S+\.yml)$", config.read_text(), re.MULTILINE)
    loaded = [path for pattern in patterns for path in config.parent.glob(pattern)]
    assert loaded == [RULES]
    assert "\ngroups:\n" in RULES.read_text()
