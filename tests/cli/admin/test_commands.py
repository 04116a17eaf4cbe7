"""`geminga namespaces`, `topicPolicies` and `topics`: pulsar-admin's verbs against a broker of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from geminga.broker.policies.table import COMPACTION_WARNING
from geminga.cli.arguments.parser import EXIT_FAILED, EXIT_OK, EXIT_USAGE
from geminga.cli.main import main
from geminga.cli.verbs.rows.policy_flags import NAMESPACE_VERBS, TOPIC_VERBS
from tests.e2e.broker_process import BrokerProcess

NAMESPACE = "public/default"
Command = Callable[..., str]
NO_BRACKETS = str.maketrans("", "", "[]")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with BrokerProcess(tmp_path_factory.mktemp("admin-commands") / "data") as process:
        yield process.endpoints.web_url


@pytest.fixture
def geminga(url: str, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs one command and returns what it printed, its errors where it failed."""

    def call(*arguments: str, code: int = EXIT_OK) -> str:
        try:
            got = main([*arguments, "--url", url])
        except SystemExit as leave:
            got = int(leave.code or 0)
        out, err = capsys.readouterr()
        assert got == code, (out, err)
        return out if code == EXIT_OK else err

    return call


@pytest.fixture
def topic(geminga: Command, request: pytest.FixtureRequest) -> str:
    name = f"persistent://public/default/{request.node.name.translate(NO_BRACKETS)}"
    geminga("topics", "create", name)
    return name


def test_retention_as_the_article_sets_it(geminga: Command, topic: str) -> None:
    assert geminga("namespaces", "get-retention", NAMESPACE) == "null\n"
    assert geminga("namespaces", "set-retention", NAMESPACE, "--time", "10", "--size", "500") == ""
    shown = {"retentionTimeInMinutes": 10, "retentionSizeInMB": 500}
    assert json.loads(geminga("namespaces", "get-retention", NAMESPACE)) == shown
    assert geminga("topicPolicies", "get-retention", topic) == "null\n"
    assert json.loads(geminga("topicPolicies", "get-retention", topic, "--applied")) == shown
    geminga("topicPolicies", "set-retention", topic, "-t", "3h", "-s", "-1")
    shown = {"retentionTimeInMinutes": 180, "retentionSizeInMB": -1}
    assert json.loads(geminga("topicPolicies", "get-retention", topic, "-ap")) == shown
    geminga("topicPolicies", "remove-retention", topic)
    geminga("namespaces", "remove-retention", NAMESPACE)
    assert geminga("namespaces", "get-retention", NAMESPACE) == "null\n"


@pytest.mark.parametrize(
    ("time", "size", "shown"),
    [
        ("120", "10M", (2, 10)),
        ("2d", "1G", (2880, 1024)),
        ("-1", "-1", (-1, -1)),
        ("0", "0", (0, 0)),
        ("1w", "1048576", (10080, 1)),
    ],
)
def test_units_are_those_of_pulsar_admin(
    geminga: Command, topic: str, time: str, size: str, shown: tuple[int, int]
) -> None:
    geminga("topicPolicies", "set-retention", topic, "--time", time, "--size", size)
    got = json.loads(geminga("topicPolicies", "get-retention", topic))
    assert (got["retentionTimeInMinutes"], got["retentionSizeInMB"]) == shown


@pytest.mark.parametrize(
    "arguments", [("--time", "30s", "--size", "10M"), ("--time", "10m", "--size", "10K")]
)
def test_less_than_a_unit_counts_as_nothing_which_is_said(
    geminga: Command, topic: str, arguments: tuple[str, ...]
) -> None:
    """As pulsar-admin has it; the broker then refuses a single 0."""
    told = geminga("topicPolicies", "set-retention", topic, *arguments, code=EXIT_FAILED)
    assert "it counts as 0" in told
    assert "Setting a single time or size limit to 0 is invalid" in told
    assert geminga("topicPolicies", "get-retention", topic) == "null\n"


def test_a_bare_number_that_would_come_to_nothing_is_whole_units(geminga: Command, topic: str) -> None:
    geminga("topicPolicies", "set-retention", topic, "-t", "59", "-s", "1048575")
    got = json.loads(geminga("topicPolicies", "get-retention", topic))
    assert got == {"retentionTimeInMinutes": 59, "retentionSizeInMB": 1048575}


def test_what_is_no_number_is_refused(geminga: Command, topic: str) -> None:
    geminga("topicPolicies", "set-retention", topic, "-t", "x", "-s", "1M", code=EXIT_USAGE)
    geminga("topicPolicies", "set-retention", topic, "-t", "1m", "-s", "1X", code=EXIT_USAGE)
    assert geminga("topicPolicies", "get-retention", topic) == "null\n"


@pytest.mark.parametrize(
    ("verb", "arguments", "reason"),
    [
        ("set-deduplication", (), "give either --enable or --disable"),
        ("set-delayed-delivery", ("-t", "2"), "give either --enable or --disable"),
        ("set-ttl-from-due-time", (), "give either --enable or --disable"),
        (
            "set-inactive-topic-policies",
            ("-t", "1m", "-m", "delete_when_no_subscriptions"),
            "give either --enable or --disable",
        ),
        ("set-backlog-quota", ("-p", "producer_exception"), "takes --limit"),
        (
            "set-backlog-quota",
            ("-p", "producer_exception", "-t", "message_age", "-l", "1M"),
            "takes --limitTime",
        ),
    ],
)
def test_a_command_that_says_nothing_changes_nothing(
    geminga: Command, topic: str, verb: str, arguments: tuple[str, ...], reason: str
) -> None:
    assert reason in geminga("topicPolicies", verb, topic, *arguments, code=EXIT_FAILED)


def test_who_sets_what_has_no_effect_is_told(
    url: str, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["topicPolicies", "set-compaction-threshold", topic, "-t", "1000000", "--url", url]) == EXIT_OK
    )
    told = capsys.readouterr().err
    assert told == f"warning: {COMPACTION_WARNING}\n"
    assert main(["topicPolicies", "remove-compaction-threshold", topic, "--url", url]) == EXIT_OK
    assert main(["topicPolicies", "set-max-producers", topic, "-p", "5", "--url", url]) == EXIT_OK
    assert capsys.readouterr().err == ""


def test_ttl_is_a_bare_number(geminga: Command, topic: str) -> None:
    geminga("namespaces", "set-message-ttl", NAMESPACE, "--messageTTL", "30s")
    assert geminga("namespaces", "get-message-ttl", NAMESPACE) == "30\n"
    geminga("topicPolicies", "set-message-ttl", topic, "-ttl", "10")
    assert geminga("topicPolicies", "get-message-ttl", topic) == "10\n"
    geminga("topicPolicies", "remove-message-ttl", topic)
    assert geminga("topicPolicies", "get-message-ttl", topic, "--applied") == "30\n"
    geminga("namespaces", "remove-message-ttl", NAMESPACE)


def test_times_of_delays_and_sizes_of_thresholds_have_units(geminga: Command, topic: str) -> None:
    for tick, longest, expected in (("1s", "1w", (1000, 604_800_000)), ("16ms", "90m", (16, 5_400_000))):
        geminga("topicPolicies", "set-delayed-delivery", topic, "-e", "-t", tick, "-md", longest)
        got = json.loads(geminga("topicPolicies", "get-delayed-delivery", topic))
        assert (got["tickTime"], got["maxDeliveryDelayInMillis"]) == expected
    geminga("topicPolicies", "set-delayed-delivery", topic, "-e", "-t", "0.25", "-md", "5")
    got = json.loads(geminga("topicPolicies", "get-delayed-delivery", topic))
    assert (got["tickTime"], got["maxDeliveryDelayInMillis"]) == (250, 5000)
    geminga("topicPolicies", "set-delayed-delivery", topic, "-e", "-t", "-1w", code=EXIT_USAGE)
    geminga("topicPolicies", "remove-delayed-delivery", topic)
    geminga("topicPolicies", "set-compaction-threshold", topic, "-t", "10M")
    assert geminga("topicPolicies", "get-compaction-threshold", topic) == "10485760\n"
    geminga("topicPolicies", "remove-compaction-threshold", topic)


def test_the_brokers_reason_is_printed(geminga: Command, topic: str) -> None:
    told = geminga("topicPolicies", "set-retention", topic, "-t", "0", "-s", "10M", code=EXIT_FAILED)
    assert told.startswith("geminga topicPolicies set-retention: Invalid retention policy: Setting a single")
    told = geminga("topics", "stats", "nothing-here", code=EXIT_FAILED)
    # Behind it the name of a topic that other tests have made may be suggested.
    assert told.startswith("geminga topics stats: Topic persistent://public/default/nothing-here not found")
    assert "unknown verb" in geminga("topics", "statz", code=EXIT_USAGE)
    assert "a/b/c" in geminga("namespaces", "policies", "a/b/c", code=EXIT_FAILED)


VALUES = {
    "retention": ["-t", "10m", "-s", "10M"],
    "message-ttl": ["-ttl", "10"],
    "delayed-delivery": ["-e", "-t", "2", "-md", "5s"],
    "persistence": [],
    "publish-rate": ["-m", "5"],
    "dispatch-rate": ["-md", "5", "-bd", "100", "-dt", "10"],
    "subscription-dispatch-rate": ["-md", "5"],
    "subscribe-rate": ["-sr", "5"],
    "inactive-topic-policies": ["-e", "-t", "5m", "-m", "delete_when_no_subscriptions"],
    "subscription-types-enabled": ["-t", "Shared,Exclusive"],
    "replicator-dispatch-rate": ["-md", "5"],
    "offload-policies": ["-d", "aws-s3", "-b", "ledgers", "-r", "here"],
    "auto-subscription-creation": ["-e"],
    "dispatcher-pause-on-ack-state-persistent": ["--request-timeout", "30"],
    "encryption-required": ["-e"],
    "subscription-auth-mode": ["-m", "Prefix"],
    "clusters": ["-c", "standalone"],
    "allowed-clusters": ["-c", "standalone"],
    "replication-clusters": ["-c", "standalone"],
    "anti-affinity-group": ["-g", "apart"],
    "bookie-affinity-group": ["-pg", "a", "-sg", "b"],
    "deduplication": ["-e"],
    "ttl-from-due-time": ["-e"],
    "backlog-quota-from-due-time": ["-e"],
    "schema-compatibility-strategy": ["-c", "FULL"],
    "schema-validation-enforce": ["-e"],
    "is-allow-auto-update-schema": ["-d"],
}

SAME_AS_BEFORE = ("clusters",)
"""There is one cluster."""
ABSENT = {"bookie-affinity-group": EXIT_FAILED}
"""Not found, as long as none has been set."""


@pytest.mark.parametrize("group", ["namespaces", "topicPolicies"])
def test_every_policy_can_be_set_shown_and_taken_away(geminga: Command, group: str) -> None:
    subject = NAMESPACE
    if group == "topicPolicies":
        subject = "every-policy"
        geminga("topics", "create", subject)
    for policy in NAMESPACE_VERBS if group == "namespaces" else TOPIC_VERBS:
        if policy.name.startswith("entry-filters"):
            told = geminga(group, f"set-{policy.name}", subject, "-efn", "Filter", code=EXIT_FAILED)
            assert "Entry filter 'Filter' not found" in told
            continue
        before = geminga(group, f"get-{policy.name}", subject, code=ABSENT.get(policy.name, EXIT_OK))
        given = VALUES.get(policy.name) or [policy.flags[-1].names[0], "7"]
        geminga(group, f"set-{policy.name}", subject, *given)
        after = geminga(group, f"get-{policy.name}", subject)
        assert after != before or policy.name in SAME_AS_BEFORE, policy.name
        if policy.removable:
            geminga(group, f"{policy.remove[0]}-{policy.name}", subject)
            assert geminga(group, f"get-{policy.name}", subject) in (before, "null\n")
    shown = "get-backlog-quotas" if group == "namespaces" else "get-backlog-quota"
    geminga(group, "set-backlog-quota", subject, "-l", "10M", "-p", "producer_exception")
    geminga(group, "set-backlog-quota", subject, "-lt", "1h", "-p", "producer_exception", "-t", "message_age")
    quotas = json.loads(geminga(group, shown, subject))
    assert quotas["destination_storage"]["limitSize"] == 10 * 2**20
    assert quotas["message_age"]["limitTime"] == 3600
    geminga(group, "remove-backlog-quota", subject)
    geminga(group, "remove-backlog-quota", subject, "-t", "message_age")
    assert json.loads(geminga(group, shown, subject)) == {}


def test_topics_and_subscriptions(geminga: Command, topic: str, url: str) -> None:
    assert topic in geminga("topics", "list", NAMESPACE).splitlines()
    geminga("topics", "create-subscription", topic, "-s", "a/b", "-m", "earliest")
    assert geminga("topics", "subscriptions", topic) == "a/b\n"
    assert json.loads(geminga("topics", "stats", topic))["subscriptions"]["a/b"]["msgBacklog"] == 0
    assert json.loads(geminga("topics", "stats-internal", topic))["state"] == "LedgerOpened"
    geminga("topics", "clear-backlog", topic, "-s", "a/b")
    geminga("topics", "expire-messages", topic, "-s", "a/b", "-p", "earliest")
    told = geminga("topics", "expire-messages", topic, "-s", "a/b", "-p", "987654:1", code=EXIT_FAILED)
    assert "invalid message position provided" in told
    told = geminga("topics", "expire-messages", topic, "-s", "a/b", code=EXIT_FAILED)
    assert told.endswith("give either --expireTime or --position\n")
    geminga("topics", "truncate", topic)
    geminga("topics", "skip", topic, "-s", "a/b", "-n", "1")
    geminga("topics", "reset-cursor", topic, "-s", "a/b", "-m", "earliest")
    geminga("topics", "reset-cursor", topic, "-s", "a/b", "-t", "10m")
    geminga("topics", "unsubscribe", topic, "--subscription", "a/b")
    assert geminga("topics", "subscriptions", topic) == ""
    geminga("topics", "unload", topic)
    geminga("topics", "delete", topic)
    assert topic not in geminga("topics", "list", NAMESPACE).splitlines()


def test_namespaces_and_partitioned_topics(geminga: Command) -> None:
    geminga("namespaces", "create", "public/made")
    assert "public/made" in geminga("namespaces", "list", "public").splitlines()
    geminga("topics", "create-partitioned-topic", "public/made/p", "-p", "2")
    assert geminga("namespaces", "topics", "public/made").count("-partition-") == 2
    assert json.loads(geminga("topics", "partitioned-stats", "public/made/p"))["metadata"]["partitions"] == 2
    geminga("topics", "truncate", "public/made/p")
    for verb in ("terminate", "partitioned-terminate"):
        told = geminga("topics", verb, "public/made/p").splitlines()
        assert [line.partition(" successfully")[0] for line in told] == [
            f"Topic persistent://public/made/p-partition-{number}" for number in (0, 1)
        ]
    geminga("topics", "delete-partitioned-topic", "public/made/p")
    assert json.loads(geminga("namespaces", "policies", "public/made"))["bundles"]["numBundles"] == 4
    geminga("namespaces", "delete", "public/made")


def test_help_lists_the_verbs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for group, verb in (
        ("namespaces", "set-retention"),
        ("topicPolicies", "get-message-ttl"),
        ("topics", "unsubscribe"),
    ):
        assert main([group, "--help"]) == EXIT_OK
        assert verb in capsys.readouterr().out


def test_schemas_are_uploaded_shown_and_deleted(geminga: Command, topic: str, tmp_path: Path) -> None:
    definition = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
    file, other = tmp_path / "schema.json", tmp_path / "other.json"
    file.write_text(json.dumps({"type": "AVRO", "schema": definition, "properties": {"k": "v"}}))
    other.write_text(json.dumps({"type": "STRING", "schema": ""}))
    assert "Schema not found" in geminga("schemas", "get", topic, code=EXIT_FAILED)
    assert json.loads(geminga("schemas", "upload", topic, "-f", str(file))) == {"version": {"version": 0}}
    shown = json.loads(geminga("schemas", "get", topic))
    assert (shown["version"], json.loads(shown["data"]), shown["properties"]) == (0, definition, {"k": "v"})
    assert json.loads(geminga("schemas", "get", topic, "-v", "0")) == shown
    assert json.loads(geminga("schemas", "get", topic, "-a")) == [shown]
    assert json.loads(geminga("schemas", "compatibility", topic, "-f", str(file)))["compatibility"] is True
    refused = geminga("schemas", "upload", topic, "-f", str(other), code=EXIT_FAILED)
    assert "exists schema type AVRO, new schema type STRING" in refused
    missing = geminga("schemas", "upload", topic, "-f", "missing.json", code=EXIT_FAILED)
    assert missing.count("missing.json") == 1
    assert "No such file" in missing
    assert json.loads(geminga("schemas", "delete", topic)) == {"version": 1}
    assert "Schema not found" in geminga("schemas", "get", topic, code=EXIT_FAILED)
