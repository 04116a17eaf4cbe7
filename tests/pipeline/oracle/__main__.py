"""Random topics, written and read by the official Java client and read by the pipeline: all rows compared.

    python -m tests.pipeline.oracle --topics 300 --seed 1                a Geminga of its own
    python -m tests.pipeline.oracle --topics 300 --url pulsar://localhost:6650 --web http://localhost:8080
    python -m tests.pipeline.oracle --transactions --url ... --web ...     a real Pulsar that has transactions
    python -m tests.pipeline.oracle --topics 20 --seed 1 --only 7 --without-spark      one topic again

`plans.py` draws topics: schemas of every kind with up to four versions, classes of which the client makes
the schema, batches, compression, nulls, keys, properties, chunked and encrypted messages.
`PipelineOracle.java` writes random messages to them, reads them with the latest schema as the client's
generic records, and prints what it read. Each is then read by `read_topic` and, unless that fails, by a batch
query of Spark in splits and by a stream in micro-batches. Spark also writes each to another topic: the Java
client reads the same there, in the same order, and so does `read_topic` (`copies.py`). A difference is
printed with the topic, its schema, the message and both values, and the exit code is then 1.

Needs a JDK of 17 or newer, and the jars of `org.apache.pulsar:pulsar-client-original` with what they depend
on: in the directory that `--jars` or `REFERENCE_PULSAR_JARS` names, as for `tests/oracle`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import pyarrow as pa

from geminga.pipeline import read_topic
from tests.e2e.admin_http import Admin
from tests.e2e.broker_process import BrokerProcess, Endpoints
from tests.e2e.tours.tour import JARS
from tests.pipeline.oracle.canonical import MORE, Place, Row, differences, expected_rows, rows_of
from tests.pipeline.oracle.copies import SUFFIX, changes, count_sequence_ids, plan_of
from tests.pipeline.oracle.plans import Plan, plans

PROGRAM = Path(__file__).with_name("PipelineOracle.java")
SETTINGS = {"brokerDeleteInactiveTopicsEnabled": "false"}
KEEPS_EMPTY_TOPICS = {
    "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
    "maxInactiveDurationSeconds": 60,
    "deleteWhileInactive": False,
}
"""A broker deletes a partition without messages after a minute, and reading the topic then says so."""
PRINTED_MAX = 5
"""Differences of a topic that are printed; the others are counted."""


class Topic:
    """One that the Java client has written and read."""

    def __init__(self, plan: Plan, about: Row, lines: list[Row], private_key: Path) -> None:
        self.plan, self.about = plan, about
        self.name: str = plan["topic"]
        self.bad_in_java = [line for line in lines if "error" in line]
        self.expected: dict[Place, Row] = expected_rows([line for line in lines if "error" not in line])
        self.options = {"columns": ",".join(MORE)}
        if plan["encrypted"]:
            self.options["pulsar.reader.privateKeyPath"] = str(private_key)
        self.names: list[str] = list(next(iter(self.expected.values()))["value"]) if self.expected else []

    @property
    def schema(self) -> str:
        accepted = self.about.get("accepted", [])
        found = [self.plan["versions"][index] for index in accepted]
        return json.dumps([*found, *filter(None, [self.about.get("definition")])])


class Report:
    """Prints what differs, and counts."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._printed: dict[str, list[str]] = {}
        """By topic, what differed first."""
        self._unreadable: set[str] = set()

    def compare(self, way: str, topic: Topic, read: Callable[[], pa.Table]) -> None:
        try:
            found = rows_of(read(), topic.names)
        except Exception as error:
            self._unreadable.add(topic.name)
            self.fails(way, topic, error)
            return
        self.counts[f"rows compared, {way}"] += len(found)
        self.differs(way, topic, list(differences(topic.expected, found)))

    def fails(self, way: str, topic: Topic, error: Exception) -> None:
        self.counts[f"topics that raise, {way}"] += 1
        self.differs(way, topic, [f"{type(error).__name__}: {_reason(error)}"])

    def differs(self, way: str, topic: Topic, lines: list[str]) -> None:
        if not lines:
            return
        self.counts[f"topics that differ, {way}"] += 1
        self.counts[f"differences, {way}"] += len(lines)
        known = self._printed.setdefault(topic.name, lines)
        if known is lines:
            told = {name: value for name, value in topic.plan.items() if name not in ("topic", "versions")}
            print(f"{topic.name} {told}\n  schemas {topic.schema}")
        if known is not lines and sorted(known) == sorted(lines):
            print(f"  {way}: the same in {topic.name}")
            return
        for line in lines[:PRINTED_MAX]:
            print(f"  {way}, {topic.name}: {line}")
        if len(lines) > PRINTED_MAX:
            print(f"  {way}: and {len(lines) - PRINTED_MAX} more")
        sys.stdout.flush()

    def is_readable(self, topic: Topic) -> bool:
        """Whether it was read at all, with differences or not."""
        return topic.name not in self._unreadable

    @property
    def has_any(self) -> bool:
        return bool(self._printed)


def _reason(error: Exception) -> str:
    """Without the trace that pyarrow and Spark put into the text."""
    text = str(error).strip()
    lines = [line for line in text.splitlines() if line and not line.startswith(" ")]
    return (text if "Detail: " in text else lines[-1] if lines else "").split(" Detail: ")[0][:400]


def make_keys(directory: Path) -> Path:
    """The pair that the Java program and the pipeline take; returns the private one."""
    private, public = directory / "private.pem", directory / "public.pem"
    for command in (
        ["genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", str(private)],
        ["rsa", "-in", str(private), "-pubout", "-out", str(public)],
    ):
        subprocess.run(["openssl", *command], check=True, capture_output=True)
    return private


def make_namespace(admin: Admin, name: str, topics: Sequence[Plan]) -> None:
    """One whose schemas may change as long as the latest version reads the earlier ones."""
    path = f"/admin/v2/namespaces/{name}"
    for method, asked, body in (
        ("PUT", path, {}),
        ("PUT", f"{path}/schemaCompatibilityStrategy", "BACKWARD_TRANSITIVE"),
        ("POST", f"{path}/retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}),
        ("POST", f"{path}/inactiveTopicPolicies", KEEPS_EMPTY_TOPICS),
        *(
            ("PUT", f"/admin/v2/{topic.replace('://', '/')}/partitions", plan["partitions"])
            for plan in topics
            for topic in (plan["topic"], plan["topic"] + SUFFIX)
            if plan["partitions"]
        ),
    ):
        answer = admin.request(method, asked, body)
        assert answer.status in (200, 204), (method, asked, answer)


def java_rows(url: str, jars: Path, directory: Path, topics: Sequence[Plan], private: Path) -> list[Topic]:
    given, printed, log = (directory / name for name in ("plan.json", "rows.jsonl", "java.log"))
    given.write_text(json.dumps(topics))
    command = [
        "java",
        "-Xmx1g",
        "-cp",
        f"{jars}/*",
        str(PROGRAM),
        str(given),
        url,
        str(directory),
        str(printed),
    ]
    with log.open("wb") as output:
        run = subprocess.run(command, stdout=output, stderr=output, check=False)
    if run.returncode:
        raise SystemExit(f"the Java program fails:\n{log.read_text(errors='replace')[-3000:]}")
    found = []
    with printed.open(encoding="utf-8") as lines:
        for plan in topics:
            about = json.loads(next(lines))
            assert about["about"] == plan["topic"]
            rows = [json.loads(next(lines)) for _ in range(about["rows"])]
            found.append(Topic(plan, about, rows, private))
    return found


def check_copies(
    endpoints: Endpoints, jars: Path, directory: Path, topics: Sequence[Topic], report: Report
) -> None:
    """What Spark wrote back: the Java client reads the same rows there, and `read_topic` what that reads."""
    url, admin = endpoints.service_url, Admin(endpoints.web_url)
    schemas = [
        admin.get(f"/admin/v2/schemas/{topic.name.split('://')[1]}{SUFFIX}/schema") for topic in topics
    ]
    given = [
        plan_of(topic.plan, answer.json() if answer.status == 200 else None)
        for topic, answer in zip(topics, schemas, strict=True)
    ]
    copies = java_rows(url, jars, directory, given, directory / "private.pem")
    for topic, copy in zip(topics, copies, strict=True):
        failed = copy.about.get("failed") or (copy.bad_in_java and copy.bad_in_java[0]["error"])
        if failed:
            report.differs("written back", topic, [f"Java does not read it: {failed[:1500]}"])
            continue
        report.counts["rows written back"] += len(copy.expected)
        report.differs("written back", topic, list(changes(topic.plan, topic.expected, copy.expected)))
        count_sequence_ids(copy.expected)
        report.compare(
            "read_topic of what was written back", copy, lambda each=copy: read_directly(url, each)
        )


@contextlib.contextmanager
def broker(flags: argparse.Namespace, directory: Path) -> Iterator[Endpoints]:
    if flags.url:
        yield Endpoints(flags.url, flags.web)
        return
    with BrokerProcess(directory / "data", settings=SETTINGS) as process:
        yield process.endpoints


def read_directly(url: str, topic: Topic) -> pa.Table:
    with read_topic(url, topic.name, options=topic.options) as reader:
        return reader.read_all()


def check_java(report: Report, topics: Sequence[Topic]) -> list[Topic]:
    """Counts what the Java client wrote and read; returns the topics that can be compared."""
    kept = []
    for topic in topics:
        report.counts["topics"] += 1
        report.counts["versions"] += len(topic.about.get("accepted", []))
        report.counts["versions that the broker refused"] += len(topic.about["refused"])
        if "failed" in topic.about:
            report.counts["topics that fail in Java"] += 1
            print(f"{topic.name} fails in Java: {topic.about['failed'][:1500]}")
            print(f"  schemas {json.dumps(topic.plan['versions'])}")
        elif topic.bad_in_java:
            report.counts["topics that Java does not read"] += 1
            print(
                f"{topic.name}: Java does not read {len(topic.bad_in_java)}: {topic.bad_in_java[0]['error']}"
            )
            print(f"  schemas {topic.schema}")
        else:
            report.counts["rows"] += len(topic.expected)
            report.counts["transactions aborted"] += topic.about.get("aborted", 0)
            kept.append(topic)
    return kept


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Compare the pipeline with the Java client, on random topics."
    )
    parser.add_argument("--topics", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, action="append", help="only the topic of this number")
    parser.add_argument("--url", help="a broker that runs; else one is started")
    parser.add_argument("--web", help="its admin API")
    parser.add_argument("--jars", type=Path, default=JARS, help="the directory of the Java client's jars")
    parser.add_argument("--transactions", action="store_true", help="some topics have transactions")
    parser.add_argument("--without-spark", action="store_true", help="read_topic only")
    parser.add_argument("--show-refused", action="store_true", help="why the broker refused versions")
    flags = parser.parse_args()
    if bool(flags.url) != bool(flags.web):
        parser.error("--url and --web go together")
    report = Report()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        with broker(flags, directory) as endpoints:
            namespace = f"public/oracle-{flags.seed}-{os.getpid()}"
            drawn = plans(flags.seed, flags.topics, namespace, transactions=flags.transactions)
            if flags.only:
                drawn = [drawn[number] for number in flags.only]
            make_namespace(Admin(endpoints.web_url), namespace, drawn)
            private = make_keys(directory)
            written = java_rows(endpoints.service_url, flags.jars, directory, drawn, private)
            if flags.show_refused:
                print(
                    *(f"{topic.name}: {each}" for topic in written for each in topic.about["refused"]),
                    sep="\n",
                )
            topics = check_java(report, written)
            for topic in topics:
                report.compare(
                    "read_topic", topic, lambda each=topic: read_directly(endpoints.service_url, each)
                )
            if not flags.without_spark:
                from tests.pipeline.oracle.on_spark import compare_on_spark

                readable = [topic for topic in topics if report.is_readable(topic)]
                written = compare_on_spark(endpoints.service_url, readable, report)
                check_copies(endpoints, flags.jars, directory, written, report)
    for what, count in sorted(report.counts.items()):
        print(f"{count:9,} {what}")
    return 1 if report.has_any or report.counts["topics that fail in Java"] else 0


if __name__ == "__main__":
    sys.exit(main())
