"""The content of the metadata tree: one struct for each kind of node, its JSON, and its path.

Each value is JSON that names the kind of the record and the version of its format:
`{"record":"tenant",...,"format":1}`. A reader ignores unknown fields, fills absent ones with their defaults,
and refuses a format version above its own. The table of paths is in docs/formats/metadata.md.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final, Literal, TypeVar

import msgspec

from geminga.errors import CorruptData
from geminga.names import NamespaceName, TopicName, decode_name, encode_name

FORMAT_VERSION = 1
"""Raised when an older reader would misunderstand a record. A new field with a default does not
need that.
"""


# JSON and not a binary form: an operator can read a damaged directory's metadata with any RocksDB tool.
class Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="record"):
    """Every record's base. `format` is the version that the record was written with."""

    format: int = FORMAT_VERSION


class InstanceRecord(Record, frozen=True, tag="instance"):
    """The identity of a data directory, written once when it is created."""

    path: ClassVar[str] = "/instance"

    format_version: int
    """The version of the whole directory: keys, rows, and the bookie's files."""
    instance_id: str
    cluster: str
    clock: Literal["real", "virtual"]
    """Fixed for good: under a virtual clock, due times are relative to the broker's stamps."""
    created_ms: int


STARTS_MAX: Final = 16
"""How many starts a data directory remembers."""


class Start(msgspec.Struct, frozen=True):
    """A start of a broker on a data directory."""

    id: str
    """Random, 16 hexadecimal digits: two copies of one directory never have the same."""
    changes: int
    """How many changes the metadata had when it was opened, by RocksDB's sequence numbers."""


class StartsRecord(Record, frozen=True, tag="starts"):
    """The latest starts on this directory, the last one last: see `change_note.py`."""

    path: ClassVar[str] = "/starts"

    starts: list[Start]


class ClockRecord(Record, frozen=True, tag="clock"):
    """Of a virtual clock: how far it is ahead of the machine's, and what it has shown. Absent before the
    first jump, or the first orderly stop.
    """

    path: ClassVar[str] = "/clock"

    offset_ms: int
    reached_ms: int
    moving_to_ms: int = 0
    """The target of the jump that is under way; 0: none is. The other two are those of its end then, for
    versions that do not know this field.
    """


class BookieDirectoriesRecord(Record, frozen=True, tag="bookie-directories"):
    """Where the bookie's files are. Fixed for good, because the order decides which ledger is in which
    directory. Absolute paths, or relative to the data directory. Absent if all files are in the data
    directory.
    """

    path: ClassVar[str] = "/bookie-directories"

    journals: list[str]
    ledgers: list[str]


# A bound and no list: ids are taken in blocks, and those of a block that a crash interrupts are never used.
class LedgerIdsRecord(Record, frozen=True, tag="ledger-ids"):
    """All ledger ids below `next_id` may be in use."""

    path: ClassVar[str] = "/ledger-ids"

    next_id: int


class TenantRecord(Record, frozen=True, tag="tenant"):
    admin_roles: list[str] = []
    allowed_clusters: list[str] = []


class NamespaceRecord(Record, frozen=True, tag="namespace"):
    """`policies` is the admin API's JSON object, including unknown keys."""

    created_ms: int
    bundles: int = 4
    # Untyped: a policy that this version does not serve is kept for one that does.
    policies: dict[str, Any] = {}


class PartitionedTopicRecord(Record, frozen=True, tag="partitioned-topic"):
    partitions: int
    properties: dict[str, str] = {}
    created_ms: int = 0


class TopicPoliciesRecord(Record, frozen=True, tag="topic-policies"):
    """What was set for one topic, all its partitions if it has any. Values are the admin API's JSON.

    `global_policies` are those of `isGlobal=true`, which stand behind the topic's own.
    """

    policies: dict[str, Any] = {}
    global_policies: dict[str, Any] = {}


class SchemaRecord(Record, frozen=True, tag="schema"):
    """One version of the schema of a topic and all its partitions. `type` is the REST API's word. A version
    that is `deleted` is a mark: it and all earlier versions do not count.
    """

    type: str
    data: bytes
    properties: dict[str, str] = {}
    created_ms: int = 0
    deleted: bool = False


class DocumentRecord(Record, frozen=True, tag="document"):
    """A document that an operator has set, as the admin API's JSON."""

    value: Any = None


class LedgerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One ledger of a topic. For the newest, open ledger `closed_ms` is 0 and the counts are not stored."""

    ledger_id: int
    entries: int = 0
    size_bytes: int = 0
    closed_ms: int = 0


class ManagedLedgerRecord(Record, frozen=True, tag="managed-ledger"):
    """A topic's chain of ledgers, oldest first. `terminated` is the last position of a terminated topic."""

    ledgers: list[LedgerInfo] = []
    terminated: tuple[int, int] | None = None
    properties: dict[str, str] = {}
    created_ms: int = 0
    holds_delayed: bool = False
    """Set when a subscription first holds a message back, and removed by a start that finds none. A start
    loads such topics to learn what is delayed; it is a hint, and nothing is lost without it.
    """


class CursorRecord(Record, frozen=True, tag="cursor"):
    """A subscription's cursor. Its newest state is the last entry of `cursor_ledger_id`; with -1,
    `mark_delete` is the whole state.

    `mark_delete` is a (ledger, entry) pair at the last write of this record.
    """

    # A fallback only: acknowledgements go to the cursor ledger, since each write of this record is a sync of
    # the metadata.
    mark_delete: tuple[int, int]
    cursor_ledger_id: int = -1
    properties: dict[str, int] = {}
    subscription_properties: dict[str, str] = {}
    created_ms: int = 0


class LedgerRecord(Record, frozen=True, tag="ledger"):
    """The owner of a ledger on the bookie. Synced before the ledger's first entry; deleted only after the
    ledger.
    """

    topic: str
    purpose: Literal["data", "cursor", "bucket", "schema"]
    created_ms: int
    state: Literal["open", "closed", "deleting"] = "open"


R = TypeVar("R", bound=Record)


def encode(record: Record) -> bytes:
    return msgspec.json.encode(record)


def decode(kind: type[R], value: bytes, path: str) -> R:
    """The record in a value. Raises CorruptData, naming `path`, if the value is another kind of record,
    newer, or no record.
    """
    try:
        record = msgspec.json.decode(value, type=kind)
    # All that damaged or hostile JSON can raise: nested a thousand times, or with bytes that are not UTF-8.
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise CorruptData(f"metadata node {path!r}: not a readable {kind.__name__}: {error}") from error
    # Refused and not guessed: a downgraded broker that drops a field it does not know would write the record
    # back without it.
    if record.format > FORMAT_VERSION:
        raise CorruptData(
            f"metadata node {path!r}: written in format {record.format} by a newer version; "
            f"this one reads up to {FORMAT_VERSION}"
        )
    return record


# --- paths ---

TENANTS = "/tenants"
NAMESPACES = "/namespaces"
PARTITIONED_TOPICS = "/partitioned-topics"
TOPIC_POLICIES = "/topic-policies"
SCHEMAS = "/schemas"
MANAGED_LEDGERS = "/managed-ledgers"
DOCUMENTS = "/documents"
LEDGERS = "/ledgers"


def tenant_path(tenant: str) -> str:
    return f"{TENANTS}/{encode_name(tenant)}"


def namespaces_path(tenant: str) -> str:
    """Its children are a tenant's namespaces (`decode_name` each)."""
    return f"{NAMESPACES}/{encode_name(tenant)}"


def namespace_path(name: NamespaceName) -> str:
    return f"{NAMESPACES}/{encode_name(name.tenant)}/{encode_name(name.local)}"


def partitioned_topic_path(name: TopicName) -> str:
    return f"{PARTITIONED_TOPICS}/{name.path}"


def topic_policies_path(name: TopicName) -> str:
    """The path for a topic; a partition has that of its partitioned topic."""
    # One record for all partitions, as in Pulsar, where policies are set for the partitioned topic.
    return f"{TOPIC_POLICIES}/{name.partitioned_name.path}"


def schemas_path(name: TopicName) -> str:
    """The children are the versions of a topic's schema, for any domain and partition."""
    local = name.partitioned_name.local
    # Without the domain, as Pulsar's schema ids: `TopicName.getSchemaName` is tenant/namespace/local name.
    return f"{SCHEMAS}/{encode_name(name.tenant)}/{encode_name(name.namespace.local)}/{encode_name(local)}"


def schema_path(name: TopicName, version: int) -> str:
    """The version is padded so that versions are listed in their order."""
    assert version >= 0
    return f"{schemas_path(name)}/{version:020d}"


def document_path(kind: str, *names: str) -> str:
    """Without names, the node whose children are the documents of a kind."""
    return "/".join((DOCUMENTS, kind, *map(encode_name, names)))


def managed_ledger_path(name: TopicName) -> str:
    """A topic's node; its children are the cursors."""
    return f"{MANAGED_LEDGERS}/{name.path}"


def topics_path(root: str, name: NamespaceName, domain: str) -> str:
    """Under MANAGED_LEDGERS or PARTITIONED_TOPICS: the children are a namespace's topics (`decode_name`
    each).
    """
    return f"{root}/{encode_name(name.tenant)}/{encode_name(name.local)}/{domain}"


def cursor_path(managed_ledger: str, cursor: str) -> str:
    """`managed_ledger` is the topic's path, `cursor` the subscription's name as it is."""
    # Encoded: a subscription's name may have a slash, which would make it a child of another cursor.
    return f"{managed_ledger}/{encode_name(cursor)}"


def ledger_path(ledger_id: int) -> str:
    """Padded so that the children of `/ledgers` are in the order of their ids."""
    # -1 stands for "no ledger" in records; as a path it would sort before all others and be found as a
    # ledger.
    assert ledger_id >= 0
    return f"{LEDGERS}/{ledger_id:020d}"


def ledger_id_of(component: str) -> int:
    """The id in a child's name under `/ledgers`."""
    return int(component)


def topic_of(path: str) -> TopicName:
    """The topic of a node under MANAGED_LEDGERS or PARTITIONED_TOPICS."""
    for root in (MANAGED_LEDGERS, PARTITIONED_TOPICS):
        if path.startswith(f"{root}/"):
            return TopicName.from_path(path[len(root) + 1 :])
    raise AssertionError(f"not the path of a topic: {path!r}")


def cursor_of(component: str) -> str:
    """The subscription's name in a child's name under a topic's node."""
    return decode_name(component)
