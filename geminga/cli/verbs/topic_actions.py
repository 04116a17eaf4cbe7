"""What verbs of `topics` do that is more than one request, and how their answers are worded."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterable
from typing import Any

from geminga.cli.admin.admin_http import Admin, Raw, RequestFailed, partition_of, topic_path
from geminga.cli.verbs.rows.values import LATEST, mapping
from geminga.cli.verbs.rows.verb import SUBJECTS, Flags, path_of, quoted
from geminga.names import TopicName

DOMAINS = ("persistent", "non_persistent")
PARTITIONS_TYPE = "application/vnd.partitioned-topic-metadata+json"
SHADOW_SOURCE = "PULSAR.SHADOW_SOURCE"
WAIT_SECONDS = 1.0
COMPACTION = ("Compaction has not been run for {} since broker startup", "Compaction is currently running")
OFFLOADING = ("Offload has not been run for {} since broker startup", "Offload is currently running")


def listed(admin: Admin, flags: Flags, path: str, bundle: str | None = None) -> list[str]:
    """Names of topics of one domain, or of both; without a namespace those of all."""
    only = getattr(flags, "topic_domain", None)
    found: list[str] = []
    for namespace in namespaces(admin) if flags.namespace is None else (flags.namespace,):
        for domain in DOMAINS if only is None else (only,):
            place = f"/admin/v2/{domain.replace('_', '-')}/{namespace_part(namespace)}{path}"
            found += admin.call("GET", place, bundle=bundle, includeSystemTopic=flags.include_system_topic)
    return found


def namespaces(admin: Admin) -> list[str]:
    """All there are."""
    tenants = admin.call("GET", "/admin/v2/tenants")
    return [
        name for tenant in tenants for name in admin.call("GET", f"/admin/v2/namespaces/{quoted(tenant)}")
    ]


def namespace_part(text: str) -> str:
    return SUBJECTS["namespace"].path_of(text)


def properties_or_none(flags: Flags) -> dict[str, str] | None:
    return mapping(flags.metadata) or None


def partitions(flags: Flags) -> Any:
    """The number; with properties a document of a type of its own."""
    properties = mapping(flags.metadata)
    if not properties:
        return flags.partitions
    import json

    document = {"partitions": flags.partitions, "properties": properties}
    return Raw(json.dumps(document).encode(), PARTITIONS_TYPE)


def start_of_subscription(flags: Flags) -> dict[str, Any]:
    properties = mapping(flags.properties)
    return {**flags.messageId, **({"properties": properties} if properties else {})}


def delete(admin: Admin, flags: Flags) -> None:
    """One topic, or those that a file lists or a pattern fits. Each is tried; fails if one failed."""
    if flags.regex and flags.from_file:
        raise RequestFailed("give either --regex or --from-file")
    failed = 0
    for name in _to_delete(admin, flags):
        try:
            admin.call("DELETE", topic_path(name), force=flags.force)
        except RequestFailed as error:
            if not (flags.regex or flags.from_file):
                raise
            failed += 1
            print(f"{name}: {error}", file=sys.stderr)
    if failed:
        raise RequestFailed(f"{failed} could not be deleted")


def _to_delete(admin: Admin, flags: Flags) -> Iterable[str]:
    if flags.from_file:
        from geminga.errors import StorageError
        from geminga.storage.disk import RealDisk

        try:
            listed_there = RealDisk(for_owner=False).read_file(flags.topic).decode()
        except StorageError as error:
            raise RequestFailed(str(error)) from None
        return [line.strip() for line in listed_there.splitlines() if line.strip()]
    if not flags.regex:
        return [flags.topic]
    domain, _, rest = flags.topic.rpartition("://")
    tenant, namespace, pattern = rest.split("/", 2) if rest.count("/") > 1 else ("public", "default", rest)
    try:
        fits = re.compile(f"{domain or 'persistent'}://{tenant}/{namespace}/{pattern}").fullmatch
    except re.error as error:
        raise RequestFailed(f"{flags.topic}: {error}") from None
    names = admin.call("GET", f"/admin/v2/{domain or 'persistent'}/{quoted(tenant)}/{quoted(namespace)}")
    return [name for name in names if fits(name)]


def partitioned_lookup(admin: Admin, flags: Flags) -> Any:
    """`topic    broker` a line; with `--sort-by-broker` `broker    [topics]`."""
    count = admin.call("GET", path_of("{topic}/partitions", flags))["partitions"]
    if not count:
        raise RequestFailed(f"{flags.topic} is not a partitioned topic")
    served: dict[str, list[str]] = {}
    of_topic: dict[str, str] = {}
    for number in range(count):
        name = f"{TopicName.parse(flags.topic)}-partition-{number}"
        path = topic_path(name).removeprefix("/admin/v2/")
        broker = admin.call("GET", f"/lookup/v2/topic/{path}")["brokerUrl"]
        of_topic[name] = broker
        served.setdefault(broker, []).append(name)
    if flags.json:
        return served if flags.sort_by_broker else of_topic
    if flags.sort_by_broker:
        return [f"{broker}    [{', '.join(names)}]" for broker, names in served.items()]
    return [f"{name}    {broker}" for name, broker in of_topic.items()]


def expire(admin: Admin, flags: Flags) -> Any:
    path = path_of("{topic}/subscription/{subscription}/expireMessages", flags)
    if (flags.expireTime is None) is (flags.position is None):
        raise RequestFailed("give either --expireTime or --position")
    if flags.position is None:
        return admin.call("POST", f"{path}/{flags.expireTime}")
    place = {**flags.position, "partitionIndex": partition_of(flags.topic), "excluded": flags.excluded}
    return admin.call("POST", path, place)


def reset(admin: Admin, flags: Flags) -> Any:
    path = path_of("{topic}/subscription/{subscription}/resetcursor", flags)
    if (flags.messageId is None) is (flags.time is None):
        raise RequestFailed("give either --time or --messageId")
    if flags.messageId is not None:
        return admin.call("POST", path, {**flags.messageId, "excluded": flags.excluded})
    return admin.call("POST", f"{path}/{_now_ms(admin) - flags.time * 1000}")


def _now_ms(admin: Admin) -> int:
    """By the broker's clock, which may be virtual; by this machine's if the broker does not tell, as
    Pulsar's, or one that takes us for no operator.
    """
    from geminga.clock import RealClock

    try:
        shown_ms: int = admin.call("GET", "/geminga/clock")["now_ms"]
    except RequestFailed:
        return RealClock().now_ms()
    return shown_ms


def analyze_from(flags: Flags) -> Any:
    return Raw(b"null") if flags.position is None else flags.position


def terminated(answer: Any, _: Flags) -> str:
    return f"Topic successfully terminated at {_id_text(answer)}"


def partitions_terminated(answer: Any, flags: Flags) -> list[str]:
    name = TopicName.parse(flags.topic)
    return [
        f"Topic {name}-partition-{number} successfully terminated at {_id_text(place)}"
        for number, place in sorted(answer.items(), key=lambda item: int(item[0]))
    ]


def _id_text(place: dict[str, int]) -> str:
    return f"{place['ledgerId']}:{place['entryId']}:{place.get('partitionIndex', -1)}"


def compacting(_: Any, flags: Flags) -> str:
    return f"Topic compaction requested for {TopicName.parse(flags.topic)}"


def compaction(admin: Admin, flags: Flags) -> Any:
    return _ended(admin, flags, "compaction", COMPACTION)


def offloading(admin: Admin, flags: Flags) -> Any:
    return _ended(admin, flags, "offload", OFFLOADING)


def _ended(admin: Admin, flags: Flags, what: str, texts: tuple[str, str]) -> Any:
    """How a long-running process went. Raises `RequestFailed` if it failed."""
    path = path_of(f"{{topic}}/{what}", flags)
    while (answer := admin.call("GET", path))["status"] == "RUNNING" and flags.waits:
        threading.Event().wait(WAIT_SECONDS)
    if flags.json:
        return answer
    if answer["status"] == "ERROR":
        raise RequestFailed(f"Error in {what}: {answer.get('lastError')}")
    not_run, running = texts
    if answer["status"] == "SUCCESS":
        return f"{what.capitalize()} was a success"
    return running if answer["status"] == "RUNNING" else not_run.format(TopicName.parse(flags.topic))


def offload(admin: Admin, flags: Flags) -> str:
    """All ledgers before those that hold the last `--size-threshold` bytes."""
    stats = admin.call("GET", path_of("{topic}/internalStats", flags))
    kept_bytes, first = 0, None
    ledgers = stats["ledgers"]
    for ledger in reversed(ledgers):
        is_open = ledger is ledgers[-1]
        kept_bytes += stats["currentLedgerSize"] if is_open else ledger["size"]
        if kept_bytes > flags.size_threshold:
            break
        first = ledger
    else:
        return "Nothing to offload"
    place = {**LATEST, "ledgerId": (first or ledgers[-1])["ledgerId"], "entryId": 0}
    admin.call("PUT", path_of("{topic}/offload", flags), place)
    name = TopicName.parse(flags.topic)
    return f"Offload triggered for {name} for messages before {place['ledgerId']}:0:-1"


def create_shadow(admin: Admin, flags: Flags) -> None:
    source = TopicName.parse(flags.source)
    count = admin.call("GET", f"{topic_path(flags.source)}/partitions")["partitions"]
    properties = mapping(flags.properties) | {SHADOW_SOURCE: str(source)}
    path = path_of("{topic}", flags)
    if not count:
        admin.call("PUT", path, properties)
        return
    import json

    document = json.dumps({"partitions": count, "properties": properties}).encode()
    admin.call("PUT", f"{path}/partitions", Raw(document, PARTITIONS_TYPE))


def shadow_source(answer: Any, _: Flags) -> str:
    return str((answer or {}).get(SHADOW_SOURCE, "null"))
