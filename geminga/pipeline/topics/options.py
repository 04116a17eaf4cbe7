"""Options of the data source, with the names that the JVM connector (streamnative/pulsar-spark) gave them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import cast

from geminga.limits import MIB
from geminga.pipeline.client.addresses import addresses
from geminga.pipeline.client.topics import full_name
from geminga.pipeline.columns.columns import HEADERS, METADATA_COLUMNS, MORE_COLUMNS
from geminga.pipeline.errors import Access, BadOption
from geminga.pipeline.topics.offset_options import LATEST_TEXT, MessageIds, Times, ending, starting, times
from geminga.pipeline.topics.prefixed_options import (
    ADMIN,
    CLIENT,
    PREFIXES,
    PRODUCER,
    READER,
    Settings,
    access_of,
)
from geminga.pipeline.topics.ranges import UnknownEnd
from geminga.pipeline.topics.splitting import AS_WORTH, SPLITS_OF_OPTIONS_MAX, Splitting
from geminga.pipeline.triggers.waiting import DEFAULT_DELAY_S
from geminga.pipeline.values.rules import DEFAULT_RULES, MODES, OUT_OF_RANGE, Mode, OutOfRange, ValueRules
from geminga.pipeline.values.written_schemas import PAIR_ENCODINGS, VALUE_SCHEMAS
from geminga.units import duration_ms

DEFAULT_POLL_TIMEOUT_MS = 20_000
COMPRESSIONS = ("none", "lz4", "zlib", "zstd", "snappy")
PARTITIONINGS = ("key", "roundrobin", "single", "partition")
TASK_ORDERS = ("given", "content")
STRATEGIES = ("latest", "error")
UNKNOWN_ENDS = ("fail", "warn")
_BATCH_ROWS = 1000
_NUMBER_MAX = 2**63 - 1
"""What the JVM holds, and Spark's own word for no limit."""
_MEMORY_LIMIT_BYTES, _MEMORY_LIMIT_BYTES_MIN = 64 * MIB, MIB

_TOPICS = ("topic", "topics", "topicspattern")
_READ = [
    "startingOffsets",
    "endingOffsets",
    "startingTime",
    "endingTime",
    "startingOffsetsByTimestampStrategy",
    "publishTimesApartMs",
    "predefinedSubscription",
    "subscriptionPrefix",
    "maxBytesPerTrigger",
    "maxRowsPerTrigger",
    "exactRowsPerTrigger",
    "minRowsPerTrigger",
    "maxTriggerDelay",
    "pollTimeoutMs",
    "failOnDataLoss",
    "unknownLedgerEnd",
    "allowDifferentTopicSchemas",
    "waitingForNonExistedTopic",
    "columns",
    "includeHeaders",
    "splitsPerPartition",
    "minPartitions",
    "maxRecordsPerPartition",
    "rawValue",
    "mode",
    "columnNameOfCorruptRecord",
    "outOfRangeTimes",
]
_WRITE = [
    "exactlyOnce",
    "producerNamePrefix",
    "batchRows",
    "compression",
    "pendingMax",
    "memoryLimitBytes",
    "sendTimeoutMs",
    "partitioning",
    "valueSchema",
    "keyValueEncoding",
    "keySchema",
    "checkRepetition",
    "taskOrder",
]
_CONNECTION = {"service.url", "admin.url"}
_IGNORED = {"path", "checkpointlocation", "queryname", "provider", "pushesfilters"}
"""Options of Spark, and the one with which Spark's planner finds the data source."""
_TABLE_OPTION = "option."
_RETRIES = "it steers calls of the admin API, and the broker is not asked that way here: leave it out"
_REFUSED = {
    "maxentriespertrigger": "entries are not counted here: limit messages with maxRowsPerTrigger, or "
    "maxBytesPerTrigger",
    "topic.schema.class": "schemas come from the registry",
    "maxretries": _RETRIES,
    "retrymultiplier": _RETRIES,
    "initialinterval": _RETRIES,
    "randomizationfactor": _RETRIES,
}
"""Options of older releases of the JVM connector."""
_SPELLING = {name.lower(): name for name in (*_READ, *_WRITE, "topicsPattern")}
_KNOWN = _SPELLING.keys() | _CONNECTION | _IGNORED | set(_TOPICS)


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
    """None: no topic was named. Only a writer with a __topic column may do without."""
    starting: str | MessageIds | None = None
    """`EARLIEST_TEXT`, `LATEST_TEXT`, or a message id for each topic; None: the default of the kind of
    query.
    """
    ending: str | MessageIds = LATEST_TEXT
    """`LATEST_TEXT`, or for each topic the id after the last message."""
    starting_time_ms: int | Times | None = None
    ending_time_ms: int | Times | None = None
    no_later_message_fails: bool = False
    """Whether a topic without a message at `starting_time_ms` or later is an error; otherwise it is read
    from its end.
    """
    publish_times_apart_ms: int | None = None
    """By how much publish times may be out of order; None: the default of each use."""
    predefined_subscription: str | None = None
    subscription_prefix: str | None = None
    """The prefix of the names of a stream's subscriptions, one for each partition."""
    bytes_per_trigger_max: int | None = None
    rows_per_trigger_max: int | None = None
    exact_rows: bool = False
    """Whether the limits of a trigger are counted by reading."""
    rows_per_trigger_min: int | None = None
    trigger_delay_max_s: float = DEFAULT_DELAY_S
    poll_timeout_s: float = DEFAULT_POLL_TIMEOUT_MS / 1000
    fail_on_data_loss: bool = True
    unknown_ledger_end: UnknownEnd = "fail"
    """What it is that a ledger was read up to some entry and is gone, and its length is unknown."""
    allow_different_schemas: bool = False
    wait_for_topic: bool = False
    more_columns: tuple[str, ...] = ()
    splitting: Splitting = AS_WORTH
    raw_value: bool = False
    rules: ValueRules = DEFAULT_RULES
    exactly_once: bool = False
    producer_name_prefix: str | None = None
    batch_rows: int = 1000
    compression: str = "none"
    pending_max: int = 1000
    memory_limit_bytes: int = _MEMORY_LIMIT_BYTES
    """The limit of the rows and batches that a writing task keeps."""
    send_timeout_s: float = 20.0
    partitioning: str = "key"
    hashing: str = "java"
    value_schema: str = "auto"
    key_value_encoding: str | None = None
    """One of `PAIR_ENCODINGS`: the columns `key` and `value` are a pair; None: they are no pair."""
    key_schema: str = "auto"
    check_repetition: bool = True
    """Whether an exact writer compares the rows of an earlier attempt with its own."""
    task_order: str = "given"
    admin_access: Access | None = None
    """The access data for the admin API, if they differ."""

    def subscription_of(self, topic: str) -> str:
        """The durable subscription on which a stream acknowledges; only if the options have
        `acknowledges`.
        """
        if self.predefined_subscription is not None:
            return self.predefined_subscription
        return f"{self.subscription_prefix}-{topic}"

    @property
    def acknowledges(self) -> bool:
        return self.predefined_subscription is not None or self.subscription_prefix is not None

    @property
    def is_bounded(self) -> bool:
        """Whether the options set an end."""
        return self.ending != LATEST_TEXT or self.ending_time_ms is not None


def parse_options(given: Mapping[str, str]) -> Options:
    """Raises `BadOption` that names the option and the allowed values. Names are compared in lower case."""
    given = _of_table(given)
    options = {name.lower(): value for name, value in given.items()}
    for name in options:
        if name in _REFUSED:
            raise BadOption(f"option {name!r} is not supported: {_REFUSED[name]}")
        if name not in _KNOWN and not name.startswith(PREFIXES):
            known = ", ".join(_shown(each) for each in sorted(_KNOWN - _IGNORED))
            near = get_close_matches(name, _KNOWN - _IGNORED, n=1)
            hint = f"did you mean {_shown(near[0])}? Known" if near else "known"
            raise BadOption(f"option {name!r} is unknown; {hint} are {known}")
    service_url = options.get("service.url")
    if not service_url:
        raise BadOption(
            'option "service.url" is missing; for example .option("service.url", "pulsar://localhost:6650"), '
            "or in SQL OPTIONS ('service.url' 'pulsar://localhost:6650')"
        )
    addresses(service_url)
    values = _Values(options)
    client, admin, reader, producer = (
        Settings(prefix, given) for prefix in (CLIENT, ADMIN, READER, PRODUCER)
    )
    prefix = options.get("subscriptionprefix") or None
    poll_timeout_s = (values.number("polltimeoutms", DEFAULT_POLL_TIMEOUT_MS, 1) or 0) / 1000
    access = replace(access_of(service_url, client, reader), patience_s=poll_timeout_s)
    reader_name = reader.text("subscriptionName") or reader.text("subscriptionRolePrefix") or prefix
    if reader_name is not None:
        access = replace(access, reader_name=reader_name)
    for offsets, time in (("startingoffsets", "startingtime"), ("endingoffsets", "endingtime")):
        if offsets in options and time in options:
            raise BadOption(f"options {_shown(offsets)} and {_shown(time)} exclude each other: give one")
    found = Options(
        access=access,
        admin_url=(options.get("admin.url") or "").rstrip("/") or None,
        admin_access=access_of(service_url, admin, reader) if admin else None,
        topics=_topics(options),
        starting=starting("startingOffsets", options.get("startingoffsets")),
        ending=ending("endingOffsets", options.get("endingoffsets")) or LATEST_TEXT,
        starting_time_ms=times("startingTime", options.get("startingtime")),
        ending_time_ms=times("endingTime", options.get("endingtime")),
        no_later_message_fails=values.one_of("startingoffsetsbytimestampstrategy", STRATEGIES, "latest")
        == "error",
        publish_times_apart_ms=values.number("publishtimesapartms", None, 0),
        predefined_subscription=options.get("predefinedsubscription") or None,
        subscription_prefix=prefix,
        bytes_per_trigger_max=values.number("maxbytespertrigger", None, 1),
        rows_per_trigger_max=values.number("maxrowspertrigger", None, 1),
        exact_rows=values.flag("exactrowspertrigger", False),
        rows_per_trigger_min=values.number("minrowspertrigger", None, 1),
        trigger_delay_max_s=_trigger_delay_s(options),
        poll_timeout_s=poll_timeout_s,
        fail_on_data_loss=values.flag("failondataloss", True),
        unknown_ledger_end=_unknown_end(values),
        allow_different_schemas=values.flag("allowdifferenttopicschemas", False),
        wait_for_topic=values.flag("waitingfornonexistedtopic", False),
        more_columns=_columns(options.get("columns", ""), with_headers=values.flag("includeheaders", False)),
        splitting=_splitting(values),
        raw_value=values.flag("rawvalue", False),
        rules=_rules(values),
    )
    found = replace(found, memory_limit_bytes=_memory_limit(values, client))
    _check_limits(found)
    return _with_writing(found, values, producer)


def _of_table(given: Mapping[str, str]) -> Mapping[str, str]:
    """The options of a table of Spark's catalog. Spark passes them twice, the second time with a prefix and
    beside properties such as the owner.
    """
    found = {
        name[len(_TABLE_OPTION) :]: value
        for name, value in given.items()
        if name.lower().startswith(_TABLE_OPTION)
    }
    return found or given


def _memory_limit(values: _Values, client: Settings) -> int:
    """The value of this package's option, or of the Java client's, whose 0 means none, which is the default
    here.
    """
    of_client = client.number("memoryLimitBytes") or _MEMORY_LIMIT_BYTES
    default = max(of_client, _MEMORY_LIMIT_BYTES_MIN)
    return values.number("memorylimitbytes", default, _MEMORY_LIMIT_BYTES_MIN) or default


def _splitting(values: _Values) -> Splitting:
    of_each = values.number("splitsperpartition", 0, 0, SPLITS_OF_OPTIONS_MAX) or 0
    for name in ("minpartitions", "maxrecordsperpartition"):
        if of_each and values.number(name, None, 1) is not None:
            raise BadOption(
                f"options splitsPerPartition and {_shown(name)} exclude each other: with splitsPerPartition="
                f"{of_each} each partition has so many splits, whatever it holds. Leave one of them out"
            )
    return Splitting(
        of_each,
        of_all_min=values.number("minpartitions", 0, 1, SPLITS_OF_OPTIONS_MAX) or 0,
        rows_max=values.number("maxrecordsperpartition", 0, 1) or 0,
    )


def _unknown_end(values: _Values) -> UnknownEnd:
    return "warn" if values.one_of("unknownledgerend", UNKNOWN_ENDS, "fail") == "warn" else "fail"


def _trigger_delay_s(options: Mapping[str, str]) -> float:
    given = options.get("maxtriggerdelay")
    if given is None:
        return DEFAULT_DELAY_S
    if "minrowspertrigger" not in options:
        raise BadOption("option maxTriggerDelay says how long minRowsPerTrigger waits at most: give both")
    try:
        return duration_ms(given) / 1000
    except ValueError as error:
        raise BadOption(f"option maxTriggerDelay: {error}") from None


def _check_limits(options: Options) -> None:
    least, most = options.rows_per_trigger_min, options.rows_per_trigger_max
    if least is not None and most is not None and least > most:
        raise BadOption(
            f"option minRowsPerTrigger is {least}, more than maxRowsPerTrigger ({most}): lower it"
        )


def _with_writing(found: Options, values: _Values, producer: Settings) -> Options:
    """The options for a writer: this package's, or those of the Java client's producer."""
    producer.only("chunkingEnabled", "false", "a row has to fit into one message")
    producer.only("accessMode", "Shared", "each task is a producer")
    batching = producer.flag("batchingEnabled") is not False
    rows = (producer.number("batchingMaxMessages") or _BATCH_ROWS) if batching else 1
    rows = values.number("batchrows", max(rows, 1), 1) or 1
    pending = producer.number("maxPendingMessages")
    batches = 1000 if pending is None else max(pending // rows, 1)
    send_ms = values.number("sendtimeoutms", producer.number("sendTimeoutMs") or 20_000, 1) or 0
    routing = producer.text("messageRoutingMode") or "RoundRobinPartition"
    modes = {"roundrobinpartition": "key", "singlepartition": "single"}
    if routing.lower() not in modes:
        raise BadOption(f"option {PRODUCER}messageRoutingMode is {routing!r}; see the option partitioning")
    hashing = (producer.text("hashingScheme") or "JavaStringHash").lower()
    schemes = {"javastringhash": "java", "murmur3_32hash": "murmur3"}
    if hashing not in schemes:
        raise BadOption(
            f"option {PRODUCER}hashingScheme is {hashing!r}; expected JavaStringHash or Murmur3_32Hash"
        )
    return replace(
        found,
        exactly_once=values.flag("exactlyonce", False),
        producer_name_prefix=values.text("producernameprefix") or producer.text("producerName"),
        batch_rows=rows,
        compression=values.one_of("compression", COMPRESSIONS, producer.text("compressionType") or "none"),
        pending_max=values.number("pendingmax", batches, 1) or 1,
        send_timeout_s=send_ms / 1000,
        partitioning=values.one_of("partitioning", PARTITIONINGS, modes[routing.lower()]),
        hashing=schemes[hashing],
        value_schema=values.one_of("valueschema", VALUE_SCHEMAS, "auto"),
        key_value_encoding=_pair_encoding(values),
        key_schema=values.one_of("keyschema", VALUE_SCHEMAS, "auto"),
        check_repetition=values.flag("checkrepetition", True),
        task_order=values.one_of("taskorder", TASK_ORDERS, "given"),
    )


def _pair_encoding(values: _Values) -> str | None:
    if values.text("keyvalueencoding") is not None:
        return values.one_of("keyvalueencoding", PAIR_ENCODINGS, "")
    if values.text("keyschema") is not None:
        raise BadOption("option keySchema is for pairs: give keyValueEncoding (inline or separated) too")
    return None


class _Values:
    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options

    def number(self, name: str, default: int | None, minimum: int, maximum: int = _NUMBER_MAX) -> int | None:
        given = self._options.get(name)
        if given is None:
            return default
        try:
            value = int(given)
        except ValueError:
            value = minimum - 1
        if not minimum <= value <= maximum:
            raise BadOption(
                f"option {_shown(name)} is {given!r}; expected a whole number of at least {minimum}"
                + (f" and at most {maximum}" if value > maximum else "")
            )
        return value

    def text(self, name: str) -> str | None:
        return self._options.get(name) or None

    def one_of(self, name: str, allowed: Sequence[str], default: str) -> str:
        value = self._options.get(name, default).lower()
        if value not in allowed:
            raise BadOption(f"option {_shown(name)} is {value!r}; expected {', '.join(allowed)}")
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


def _topics(options: Mapping[str, str]) -> TopicChoice | None:
    given = [name for name in _TOPICS if options.get(name)]
    if len(given) > 1:
        raise BadOption(f"options {' and '.join(map(_shown, given))} exclude each other: give one")
    if not given:
        return None
    if given[0] == "topicspattern":
        return TopicChoice(pattern=options["topicspattern"])
    if given[0] == "topic" and "," in options["topic"]:
        raise BadOption("option topic names several topics: use the option topics")
    names = options["topics"].split(",") if given[0] == "topics" else [options["topic"]]
    stripped = [name.strip() for name in names if name.strip()]
    if not stripped:
        raise BadOption("option topics names no topic")
    return TopicChoice(names=tuple(dict.fromkeys(str(full_name(name)) for name in stripped)))


def _rules(values: _Values) -> ValueRules:
    column = values.text("columnnameofcorruptrecord")
    if column in (*METADATA_COLUMNS, *MORE_COLUMNS):
        raise BadOption(f"option columnNameOfCorruptRecord is {column!r}, which is another column here")
    mode = values.one_of("mode", MODES, "failfast")
    times = values.one_of("outofrangetimes", OUT_OF_RANGE, "clamp")
    return ValueRules(cast("Mode", mode), column, cast("OutOfRange", times))


def _columns(given: str, *, with_headers: bool) -> tuple[str, ...]:
    names = tuple(name.strip() for name in given.split(",") if name.strip())
    for name in names:
        if name not in MORE_COLUMNS:
            raise BadOption(f"option columns: {name!r} is unknown; known are {', '.join(MORE_COLUMNS)}")
    return (*names, HEADERS) if with_headers and HEADERS not in names else names
