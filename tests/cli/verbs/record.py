"""Every verb with every flag, as the command line does it with a broker; and with a real Pulsar, recorded.

    GEMINGA_WEB_URL=http://localhost:8080 GEMINGA_URL=pulsar://localhost:6650 python -m tests.cli.verbs.record

plays `lines.txt` with a real Pulsar 4.0.x and writes `recorded.json`: the command line is this one both
times, so what is compared is whether its requests do with the one broker what they do with the other.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from geminga.cli.main import main
from geminga.cli.verbs.rows.policy_flags import NAMESPACE_VERBS, TOPIC_VERBS, PolicyVerb
from geminga.cli.verbs.rows.verb import Verb

HERE = Path(__file__).parent
RECORDED = HERE / "recorded.json"
SCHEMA = {"type": "AVRO", "schema": '{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}'}
GROUPS = {
    "tenants": "tenants",
    "clusters": "clusters",
    "ns-isolation-policy": "isolation",
    "brokers": "brokers",
    "broker-stats": "broker_stats",
    "bookies": "bookies",
    "resourcegroups": "resource_groups",
    "resource-quotas": "resource_quotas",
    "namespaces": "namespaces",
    "topics": "topics",
    "topicPolicies": "topic_policies",
    "subscriptions": "subscriptions",
    "schemas": "schemas",
}
VALUES = {
    "retention": "--time 10m --size 10M",
    "message-ttl": "--messageTTL 10",
    "delayed-delivery": "--enable --time 2s --maxDelay 5s",
    "persistence": "--bookkeeper-ensemble 1 --bookkeeper-write-quorum 1 --bookkeeper-ack-quorum 1 "
    "--ml-mark-delete-max-rate 2",
    "publish-rate": "--msg-publish-rate 5 --byte-publish-rate 5000",
    "dispatch-rate": "--msg-dispatch-rate 5 --byte-dispatch-rate 5000 --dispatch-rate-period 10 "
    "--relative-to-publish-rate",
    "subscribe-rate": "--subscribe-rate 5 --subscribe-rate-period 10",
    "inactive-topic-policies": "--enable-delete-while-inactive --max-inactive-duration 5m "
    "--delete-mode delete_when_no_subscriptions",
    "subscription-types-enabled": "--types Shared,Exclusive",
    "deduplication-snapshot-interval": "--interval 7",
    "deduplication": "--enable",
    "schema-compatibility-strategy": "--compatibility FULL",
    "schema-validation-enforce": "--enable",
    "is-allow-auto-update-schema": "--disable",
    "encryption-required": "--enable",
    "offload-policies": "--driver aws-s3 --region r --bucket b --endpoint http://e --aws-id i --aws-secret s "
    "--s3-role o --s3-role-session-name n --maxBlockSize 32M --readBufferSize 2M --offloadAfterElapsed 1h "
    "--offloadAfterThreshold 5M --offloadAfterThresholdInSeconds 2h --offloadedReadPriority bookkeeper-first",
    "auto-subscription-creation": "--enable",
    "dispatcher-pause-on-ack-state-persistent": "",
    "entry-filters": "--entry-filters-name org.example.Filter",
    "clusters": "--clusters standalone",
    "subscription-auth-mode": "--subscription-auth-mode Prefix",
    "anti-affinity-group": "--group apart",
    "bookie-affinity-group": "--primary-group a --secondary-group b",
}


class Played(NamedTuple):
    code: int
    out: str
    reason: str


def verbs_of(group: str) -> dict[str, Verb]:
    import importlib

    found: dict[str, Verb] = importlib.import_module(f"geminga.cli.verbs.{GROUPS[group]}").VERBS
    return found


def lines() -> list[str]:
    """All command lines: those of the file, and get, set, get and remove of each policy."""
    found = [line for line in (HERE / "lines.txt").read_text().splitlines() if not line.startswith("#")]
    return [*found, *policy_lines()]


def policy_lines() -> Iterator[str]:
    yield "namespaces create acme/kept"
    yield "topics create acme/kept/t"
    yield from _lines_of("namespaces", "acme/kept", NAMESPACE_VERBS)
    yield from _lines_of("topicPolicies", "acme/kept/t", TOPIC_VERBS)
    known = verbs_of("topics")
    names = [name.removeprefix("set-") for name in known if name.startswith("set-")]
    by_path = {policy.path: policy for policy in (*NAMESPACE_VERBS, *TOPIC_VERBS)}
    for name in names:
        policy = by_path.get(known[f"set-{name}"].path.removeprefix("{topic}/"))
        if policy is not None:
            yield from _lines_of("topics", "acme/kept/t", [policy._replace(name=name)])
    yield "topics delete acme/kept/t"
    yield "namespaces delete acme/kept"
    yield "tenants delete acme"


def _lines_of(group: str, subject: str, policies: Sequence[PolicyVerb]) -> Iterator[str]:
    known = verbs_of(group)
    for policy in policies:
        name = policy.name
        if policy.is_own or f"set-{name}" not in known:
            continue
        given = next((text for key, text in VALUES.items() if name.endswith(key)), None)
        alike = next((text for key, text in VALUES.items() if name.startswith(key)), None)
        value = given if given is not None else alike
        if value is None:
            value = f"{policy.flags[0].names[0]} 7"
        yield f"{group} get-{name} {subject}"
        yield f"{group} set-{name} {subject} {value}".rstrip()
        yield f"{group} get-{name} {subject}"
        if any(flag.names[0] == "--disable" for flag in policy.flags) and "--enable" in value:
            yield f"{group} set-{name} {subject} {value.replace('--enable', '--disable')}"
        unset = f"{policy.remove[0]}-{name}"
        if unset in known:
            yield f"{group} {unset} {subject}"
            applied = " --applied" if group == "topicPolicies" else ""
            yield f"{group} get-{name} {subject}{applied}"


def play(line: str, schema: str) -> Played:
    """What the command line does with the broker of the environment."""
    arguments = [schema if word == "SCHEMA" else word for word in shlex.split(line)]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(arguments)
        except SystemExit as left:
            code = int(left.code or 0)
    said = [text for text in err.getvalue().splitlines() if not text.startswith("warning: ")]
    return Played(code, out.getvalue(), "\n".join(said))


@contextlib.contextmanager
def schema_file() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "schema.json"
        path.write_text(json.dumps(SCHEMA))
        yield str(path)


def settled(text: str) -> str:
    """Without what differs from run to run: numbers of ledgers, times, addresses."""
    text = re.sub(r'("ledgerId"\s*:\s*|ID: |at )\d+', r"\1N", text)
    text = re.sub(r"(time|timestamp): [1-9]\d*", r"\1: N", text)
    text = re.sub(r'("timestamp"\s*:\s*)\d+', r"\1N", text)
    text = re.sub(r"(localhost|127\.0\.0\.1):\d+", "HOST", text)
    return re.sub(r"(pulsar|http)://[\w.-]+:\d+", r"\1://HOST", text)


def record() -> None:
    found = []
    with schema_file() as schema:
        for line in lines():
            played = play(line, schema)
            found.append([line, played.code, settled(played.out), played.reason])
            print(played.code, line, flush=True)
    RECORDED.write_text(json.dumps(found, indent=0, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    os.environ.setdefault("GEMINGA_URL", "pulsar://localhost:6650")
    record()
