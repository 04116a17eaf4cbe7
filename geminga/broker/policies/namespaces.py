"""Tenants, namespaces and the policies of each.

Everything is a record in the metadata store, durable when a call returns. Policies are stored as the JSON of
the request, under Pulsar's own keys, so that policies without effect here are still stored and returned.
Texts and codes are Pulsar 4.0's; admin clients show them to users.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

from geminga.broker.flow.slices import Pace, sorted_names
from geminga.broker.policies.bundles import BUNDLES_DEFAULT, bundle_boundaries, bundle_count
from geminga.broker.policies.documents import CLUSTERS
from geminga.broker.policies.records import check_created
from geminga.errors import BadVersion, Conflict, InvalidName, KeyMissing, NamespaceNotFound, PeerError
from geminga.metadata import records
from geminga.metadata.records import NamespaceRecord, TenantRecord
from geminga.metadata.store import MUST_NOT_EXIST, Delete, MetadataStore, Put
from geminga.names import NamespaceName, TopicDomain, check_tenant, decode_name

if TYPE_CHECKING:
    from geminga.clock import Clock

PUBLIC = "public"
SYSTEM = "pulsar"
LOCAL = "geminga_local_policies"
"""Keys that Pulsar stores beside the policies in a namespace's record and does not show with them."""


Listener = Callable[[NamespaceName], Awaitable[None]]


async def _nobody(name: NamespaceName) -> None:
    """No topics are to hear of it."""


class TenantNotFound(PeerError):
    http_status = 404


class ClusterNotAllowed(PeerError):
    """A cluster that does not exist."""

    http_status = 412


class ClusterForbidden(ClusterNotAllowed):
    """A cluster that the tenant may not use."""

    http_status = 403


class Namespaces:
    """The tenants and namespaces of one broker. Reads are plain calls, changes wait for the disk."""

    def __init__(self, metadata: MetadataStore, clock: Clock, *, cluster: str) -> None:
        self._metadata = metadata
        self._clock = clock
        self.cluster = cluster
        self._changed: Listener = _nobody
        self._unchanged: Listener = _nobody

    def call_on_policies_change(self, changed: Listener, unchanged: Listener) -> None:
        """From now on await `changed` with each namespace whose policies have changed, once that is durable
        and before the request is answered; and `unchanged` before a request is answered that changed nothing.
        """
        self._changed, self._unchanged = changed, unchanged

    async def bootstrap(self) -> None:
        """Create the namespaces of every Pulsar: public/default for users, pulsar/system for itself.
        Idempotent.
        """
        puts: list[Put] = []
        for tenant, namespace in ((PUBLIC, "default"), (SYSTEM, "system")):
            if self._metadata.get(records.tenant_path(tenant)) is None:
                record = TenantRecord(admin_roles=[], allowed_clusters=[self.cluster])
                puts.append(Put(records.tenant_path(tenant), records.encode(record), MUST_NOT_EXIST))
            path = records.namespace_path(NamespaceName(tenant, namespace))
            if self._metadata.get(path) is None:
                puts.append(Put(path, records.encode(self._new_record({}, BUNDLES_DEFAULT)), MUST_NOT_EXIST))
        if puts:
            await self._metadata.transact(puts, [])

    def _new_record(self, policies: dict[str, Any], bundles: int) -> NamespaceRecord:
        return NamespaceRecord(policies=policies, created_ms=self._clock.now_ms(), bundles=bundles)

    def clusters(self) -> set[str]:
        """This broker's cluster, and those that an operator has added."""
        named = self._metadata.children(records.document_path(CLUSTERS))
        return {self.cluster, *map(decode_name, named)}

    # -- tenants ---------------------------------------------------------------------------------------------

    def each_tenant(self) -> Iterator[str]:
        """In no order, read as they are taken: there may be many."""
        return map(decode_name, self._metadata.each_child(records.TENANTS))

    def tenant(self, name: str) -> TenantRecord:
        """Raises `TenantNotFound`."""
        stored = self._metadata.get(records.tenant_path(name))
        if stored is None:
            raise TenantNotFound("Tenant does not exist")
        return records.decode(TenantRecord, stored.value, records.tenant_path(name))

    async def create_tenant(self, name: str, record: TenantRecord) -> None:
        """Raises `Conflict` if it exists, `InvalidName`, `ClusterNotAllowed`."""
        try:
            check_tenant(name)
        except InvalidName:
            raise InvalidName("Tenant name is not valid") from None
        self._check_clusters(record)
        try:
            await self._metadata.put(records.tenant_path(name), records.encode(record), MUST_NOT_EXIST)
        except BadVersion:
            raise Conflict("Tenant already exist") from None

    async def update_tenant(self, name: str, record: TenantRecord) -> None:
        """Raises `TenantNotFound`, `ClusterNotAllowed`."""
        self._check_clusters(record)
        while True:
            stored = self._metadata.get(records.tenant_path(name))
            if stored is None:
                raise TenantNotFound(f"Tenant {name} not found")
            try:
                await self._metadata.put(records.tenant_path(name), records.encode(record), stored.version)
                return
            except BadVersion:
                continue

    async def delete_tenant(self, name: str) -> None:
        """Raises `TenantNotFound`, and `Conflict` while it has namespaces."""
        path = records.tenant_path(name)
        stored = self._metadata.get(path)
        if stored is None:
            raise TenantNotFound("Tenant doesn't exist")
        if any(True for _ in self._metadata.each_child(records.namespaces_path(name))):
            raise Conflict("The tenant still has active namespaces")
        try:
            await self._metadata.delete(path, stored.version)
        except KeyMissing:
            raise TenantNotFound("Tenant doesn't exist") from None
        except BadVersion:
            # A namespace was created meanwhile, or the tenant changed: the administrator should look again.
            raise Conflict("The tenant was changed at the same time; try again") from None

    def _check_clusters(self, record: TenantRecord) -> None:
        if not record.allowed_clusters or not all(name.strip() for name in record.allowed_clusters):
            raise ClusterNotAllowed("Clusters cannot be empty or blank")
        if not set(record.allowed_clusters) <= self.clusters():
            raise ClusterNotAllowed("Clusters do not exist")

    # -- namespaces ------------------------------------------------------------------------------------------

    def check_exists(self, name: NamespaceName) -> None:
        """Raises `NamespaceNotFound`."""
        if self._metadata.get(records.namespace_path(name)) is None:
            raise NamespaceNotFound(f"Namespace {name} does not exist")

    def each_namespace(self, tenant: str) -> Iterator[str]:
        """Full names (`tenant/namespace`), as `each_tenant`. Raises `TenantNotFound`."""
        if self._metadata.get(records.tenant_path(tenant)) is None:
            raise TenantNotFound("Tenant not found")
        children = self._metadata.each_child(records.namespaces_path(tenant))
        return (f"{tenant}/{decode_name(name)}" for name in children)

    async def all_namespaces(self) -> list[str]:
        """Sorted."""
        found: list[str] = []
        pace = Pace()
        for tenant in self.each_tenant():
            await pace.row()
            with contextlib.suppress(TenantNotFound):  # deleted meanwhile
                for name in self.each_namespace(tenant):
                    found.append(name)
                    await pace.row()
        return await sorted_names(found)

    async def look_at_all(self, look: Callable[[str, dict[str, Any]], None]) -> None:
        """Call `look` with the name and the own policies of every namespace, in the order of the names."""
        pace = Pace()
        for text in await self.all_namespaces():
            await pace.row()
            tenant, _, local = text.partition("/")
            with contextlib.suppress(NamespaceNotFound):
                look(text, self.record(NamespaceName(tenant, local)).policies)

    def record(self, name: NamespaceName) -> NamespaceRecord:
        """The stored record. Raises `NamespaceNotFound`."""
        stored = self._metadata.get(records.namespace_path(name))
        if stored is None:
            raise NamespaceNotFound("Namespace does not exist")
        return records.decode(NamespaceRecord, stored.value, records.namespace_path(name))

    def policies(self, name: NamespaceName) -> dict[str, Any]:
        """All policies under Pulsar's keys: the stored ones, and defaults for the others. Raises
        `NamespaceNotFound`.
        """
        record = self.record(name)
        bundles = {"boundaries": bundle_boundaries(record.bundles), "numBundles": record.bundles}
        found = {**_default_policies(self.cluster), "bundles": bundles, **record.policies}
        found.pop(LOCAL, None)
        return found

    async def create(self, name: NamespaceName, policies: dict[str, Any] | None = None) -> None:
        """Raises `TenantNotFound`, `Conflict` if it exists, `PeerError` for invalid policies."""
        given = dict(policies or {})
        given.pop(LOCAL, None)
        bundles = bundle_count(given.pop("bundles", None))
        self.check_allowed(name, given.get("replication_clusters"))
        given = check_created(given)
        record = records.encode(self._new_record(given, bundles))
        while True:
            tenant = self._metadata.get(records.tenant_path(name.tenant))
            if tenant is None:
                raise TenantNotFound("Tenant does not exist")
            if self._metadata.get(records.namespace_path(name)) is not None:
                raise Conflict("Namespace already exists")
            # The tenant is written too, unchanged: its new version refuses a concurrent delete.
            puts = [
                Put(records.namespace_path(name), record, MUST_NOT_EXIST),
                Put(records.tenant_path(name.tenant), tenant.value, tenant.version),
            ]
            try:
                await self._metadata.transact(puts, [])
                return
            except BadVersion:
                continue

    async def delete(self, name: NamespaceName) -> None:
        """Raises `NamespaceNotFound`, and `Conflict` while it has topics."""
        path = records.namespace_path(name)
        stored = self._metadata.get(path)
        if stored is None:
            raise NamespaceNotFound(f"Namespace {name} does not exist.")
        if self.has_topics(name):
            raise Conflict("Cannot delete non empty namespace")
        try:
            await self._metadata.transact([], [Delete(path, stored.version)])
        except (BadVersion, KeyMissing):
            raise Conflict("The namespace was changed at the same time; try again") from None

    def has_topics(self, name: NamespaceName) -> bool:
        return any(
            True
            for root in (records.MANAGED_LEDGERS, records.PARTITIONED_TOPICS)
            for domain in TopicDomain
            for _ in self._metadata.each_child(records.topics_path(root, name, domain.value))
        )

    async def change_policies(
        self, name: NamespaceName, change: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> None:
        """Replace a namespace's own policies by `change(policies)`, which is called again if another request
        has changed them first. Durable on return. Raises `NamespaceNotFound`, and the exceptions of
        `change`.
        """
        path = records.namespace_path(name)
        while True:
            stored = self._metadata.get(path)
            if stored is None:
                raise NamespaceNotFound("Namespace does not exist")
            record = records.decode(NamespaceRecord, stored.value, path)
            policies = change(record.policies)
            if policies == record.policies:
                await self._unchanged(name)
                return
            changed = NamespaceRecord(policies=policies, created_ms=record.created_ms, bundles=record.bundles)
            try:
                await self._metadata.put(path, records.encode(changed), stored.version)
                break
            except BadVersion:
                continue
        await self._changed(name)

    def check_allowed(self, name: NamespaceName, clusters: object) -> None:
        """Raises `ClusterForbidden` unless the namespace's tenant may use all of these clusters."""
        if clusters is None:
            return
        allowed = {self.cluster}
        with contextlib.suppress(TenantNotFound):
            allowed |= {*self.tenant(name.tenant).allowed_clusters}
        if not isinstance(clusters, list) or not {*map(str, clusters)} <= allowed:
            raise ClusterForbidden(
                f"Cluster {_plain(clusters)} is not in the list of allowed clusters list for tenant "
                f"[{name.tenant}]"
            )


def _plain(clusters: object) -> str:
    """The list in Java's notation."""
    return f"[{', '.join(map(str, clusters))}]" if isinstance(clusters, list) else str(clusters)


def _default_policies(cluster: str) -> dict[str, Any]:
    return {
        "auth_policies": {"namespace_auth": {}, "destination_auth": {}, "subscription_auth_roles": {}},
        "replication_clusters": [cluster],
        "allowed_clusters": [],
        "bundles": {},
        "backlog_quota_map": {},
        "clusterDispatchRate": {},
        "topicDispatchRate": {},
        "subscriptionDispatchRate": {},
        "replicatorDispatchRate": {},
        "clusterSubscribeRate": {},
        "publishMaxMessageRate": {},
        "latency_stats_sample_rate": {},
        "deleted": False,
        "encryption_required": False,
        "subscription_auth_mode": "None",
        "offload_threshold": -1,
        "offload_threshold_in_seconds": -1,
        "schema_compatibility_strategy": "UNDEFINED",
        "is_allow_auto_update_schema": True,
        "schema_validation_enforced": False,
        "subscription_types_enabled": [],
        "properties": {},
        "migrated": False,
    }
