"""Options of the data source, with the names that the JVM connector (streamnative/pulsar-spark) gave them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from geminga.pipeline.columns import MORE_COLUMNS
from geminga.pipeline.connection import Access, PipelineError, addresses
from geminga.pipeline.places import EARLIEST, Place, of_bytes, parse
from geminga.pipeline.topics import full_name

EARLIEST_TEXT, LATEST_TEXT = "earliest", "latest"
DEFAULT_POLL_TIMEOUT_MS = 20_000
PREFIXES = ("pulsar.client.", "pulsar.admin.", "pulsar.reader.", "pulsar.producer.")

_TOPICS = ("topic", "topics", "topicspattern")
_READ = [
    "startingOffsets",
    "endingOffsets",
    "startingTime",
    "endingTime",
    "predefinedSubscription",
    "subscriptionPrefix",
    "maxBytesPerTrigger",
    "maxRowsPerTrigger",
    "pollTimeoutMs",
    "failOnDataLoss",
    "allowDifferentTopicSchemas",
    "waitingForNonExistedTopic",
    "columns",
    "splitsPerPartition",
    "rawValue",
]
_WRITE = [
    "exactlyOnce",
    "producerNamePrefix",
    "batchRows",
    "compression",
    "pendingMax",
    "sendTimeoutMs",
    "partitioning",
]
_CONNECTION = {"service.url", "admin.url"}
_IGNORED = {"path", "checkpointlocation"}
_SPELLING = {name.lower(): name for name in (*_READ, *_WRITE, "topicsPattern")}
_KNOWN = _SPELLING.keys() | _CONNECTION | _IGNORED | set(_TOPICS)


class BadOption(PipelineError):
    """An option that is unknown, missing, or has a value that means nothing."""


@dataclass(frozen=True)
class TopicChoice:
    """Exactly one of them is set."""

    names: tuple[str, ...] = ()
    pattern: str | None = None


@dataclass(frozen=True)
class Options:
    """All options, parsed and checked. Travels to the workers."""

    access: Access
    admin_url: str | None = None
    topics: TopicChoice | None = None
    """None: nothing was named; only a writer may do without, with a __topic column."""
    starting: str | Mapping[str, Place] | None = None
    """`EARLIEST_TEXT`, `LATEST_TEXT`, or a place for each topic; None: the default of the kind of query."""
    ending: str | Mapping[str, Place] = LATEST_TEXT
    starting_time_ms: int | None = None
    ending_time_ms: int | None = None
    subscription: str | None = None
    bytes_per_trigger_max: int | None = None
    rows_per_trigger_max: int | None = None
    poll_timeout_s: float = DEFAULT_POLL_TIMEOUT_MS / 1000
    fail_on_data_loss: bool = True
    allow_different_schemas: bool = False
    wait_for_topic: bool = False
    more_columns: tuple[str, ...] = ()
    splits_per_partition: int = 0
    """0: as many as pay off."""
    raw_value: bool = False
    exactly_once: bool = False
    producer_name_prefix: str | None = None
    batch_rows: int = 1000
    compression: str = "none"
    pending_max: int = 1000
    send_timeout_s: float = 20.0
    partitioning: str = "key"
    client: Mapping[str, str] = field(default_factory=dict)
    """What came with the prefix pulsar.client."""


def parse_options(given: Mapping[str, str]) -> Options:
    """Raises `BadOption` that names the option and says what is allowed. Names are compared in lower case."""
    options = {name.lower(): value for name, value in given.items()}
    for name in options:
        if name not in _KNOWN and not name.startswith(PREFIXES):
            known = ", ".join(_shown(each) for each in sorted(_KNOWN - _IGNORED))
            raise BadOption(f"option {name!r} is unknown; known are {known}")
    service_url = options.get("service.url")
    if not service_url:
        raise BadOption(
            'option "service.url" is missing; for example .option("service.url", "pulsar://localhost:6650")'
        )
    addresses(service_url)
    prefixed = {
        name: {key[len(name) :]: value for key, value in given.items() if key.lower().startswith(name)}
        for name in PREFIXES
    }
    values = _Values(options)
    compression = options.get("compression", "none").lower()
    if compression not in ("none", "lz4", "zlib", "zstd", "snappy"):
        raise BadOption(f"option compression is {compression!r}; expected none, lz4, zlib, zstd or snappy")
    partitioning = options.get("partitioning", "key").lower()
    if partitioning not in ("key", "roundrobin", "partition"):
        raise BadOption(f"option partitioning is {partitioning!r}; expected key, roundrobin or partition")
    return Options(
        access=_access(service_url, prefixed["pulsar.client."], prefixed["pulsar.reader."]),
        admin_url=(options.get("admin.url") or "").rstrip("/") or None,
        topics=_topics(options),
        starting=_offsets(options, "startingoffsets", (EARLIEST_TEXT, LATEST_TEXT)),
        ending=_offsets(options, "endingoffsets", (LATEST_TEXT,)) or LATEST_TEXT,
        starting_time_ms=values.number("startingtime", None, 0),
        ending_time_ms=values.number("endingtime", None, 0),
        subscription=options.get("predefinedsubscription") or None,
        bytes_per_trigger_max=values.number("maxbytespertrigger", None, 1),
        rows_per_trigger_max=values.number("maxrowspertrigger", None, 1),
        poll_timeout_s=(values.number("polltimeoutms", DEFAULT_POLL_TIMEOUT_MS, 1) or 0) / 1000,
        fail_on_data_loss=values.flag("failondataloss", True),
        allow_different_schemas=values.flag("allowdifferenttopicschemas", False),
        wait_for_topic=values.flag("waitingfornonexistedtopic", False),
        more_columns=_columns(options.get("columns", "")),
        splits_per_partition=values.number("splitsperpartition", 0, 0) or 0,
        raw_value=values.flag("rawvalue", False),
        exactly_once=values.flag("exactlyonce", False),
        producer_name_prefix=options.get("producernameprefix") or None,
        batch_rows=values.number("batchrows", 1000, 1) or 1000,
        compression=compression,
        pending_max=values.number("pendingmax", 1000, 1) or 1000,
        send_timeout_s=(values.number("sendtimeoutms", 20_000, 1) or 0) / 1000,
        partitioning=partitioning,
        client=prefixed["pulsar.client."],
    )


class _Values:
    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options

    def number(self, name: str, default: int | None, minimum: int) -> int | None:
        given = self._options.get(name)
        if given is None:
            return default
        try:
            value = int(given)
        except ValueError:
            value = minimum - 1
        if value < minimum:
            raise BadOption(
                f"option {_shown(name)} is {given!r}; expected a whole number of at least {minimum}"
            )
        return value

    def flag(self, name: str, default: bool) -> bool:
        given = self._options.get(name)
        if given is None:
            return default
        if given.lower() not in ("true", "false"):
            raise BadOption(f"option {_shown(name)} is {given!r}; expected true or false")
        return given.lower() == "true"


def _shown(name: str) -> str:
    return _SPELLING.get(name, name)


def _access(service_url: str, client: Mapping[str, str], reader: Mapping[str, str]) -> Access:
    """With a token if `authPluginClassName` and `authParams` say so, as the JVM client is told."""
    settings = {name.lower(): value for name, value in client.items()}
    reading = {name.lower(): value for name, value in reader.items()}
    plugin, params = settings.get("authpluginclassname", ""), settings.get("authparams", "")
    method: str | None = None
    data: bytes | None = None
    if plugin.endswith("AuthenticationToken") or (not plugin and params.startswith("token:")):
        method, data = "token", params.removeprefix("token:").encode()
    elif plugin:
        raise BadOption(
            f"pulsar.client.authPluginClassName {plugin!r}: only AuthenticationToken is supported"
        )
    return Access(
        service_url,
        auth_method=method,
        auth_data=data,
        trust_certificates=settings.get("tlstrustcertsfilepath"),
        allow_insecure=settings.get("tlsallowinsecureconnection", "").lower() == "true",
        public_key=reading.get("publickeypath"),
        private_key=reading.get("privatekeypath"),
    )


def _topics(options: Mapping[str, str]) -> TopicChoice | None:
    given = [name for name in _TOPICS if options.get(name)]
    if len(given) > 1:
        raise BadOption(f"options {' and '.join(map(_shown, given))} exclude each other: give one")
    if not given:
        return None
    if given[0] == "topicspattern":
        return TopicChoice(pattern=options["topicspattern"])
    names = options["topics"].split(",") if given[0] == "topics" else [options["topic"]]
    stripped = [name.strip() for name in names if name.strip()]
    if not stripped:
        raise BadOption("option topics names no topic")
    return TopicChoice(names=tuple(dict.fromkeys(str(full_name(name)) for name in stripped)))


def _offsets(
    options: Mapping[str, str], name: str, words: tuple[str, ...]
) -> str | Mapping[str, Place] | None:
    given = options.get(name)
    if given is None:
        return None
    if given.strip().lower() in words:
        return given.strip().lower()
    try:
        found = json.loads(given)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise BadOption(
            f"option {_shown(name)} is {given!r}; expected {' or '.join(words)} or JSON such as "
            '{"my-topic": "12:0:0"}'
        )
    return {str(full_name(topic)): _place(name, value) for topic, value in found.items()}


def _place(name: str, value: Any) -> Place:
    """A place as text, or a message id as the JVM connector writes it: a list of signed bytes."""
    if isinstance(value, str):
        return EARLIEST if value == EARLIEST_TEXT else parse(value)
    if isinstance(value, list) and all(isinstance(byte, int) and -128 <= byte < 256 for byte in value):
        return of_bytes(bytes(byte & 0xFF for byte in value))
    raise BadOption(
        f"option {_shown(name)}: {value!r} is neither LEDGER:ENTRY:BATCH_INDEX nor a message id's bytes"
    )


def _columns(given: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in given.split(",") if name.strip())
    for name in names:
        if name not in MORE_COLUMNS:
            raise BadOption(f"option columns: {name!r} is unknown; known are {', '.join(MORE_COLUMNS)}")
    return names
