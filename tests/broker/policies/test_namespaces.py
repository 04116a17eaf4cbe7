"""Tenants and namespaces: texts and codes as the real Pulsar 4.0.7 gave them; records survive a restart."""

from __future__ import annotations

import pytest
import trio

from geminga.broker.policies.bundles import bundle_boundaries
from geminga.broker.policies.namespaces import (
    ClusterNotAllowed,
    Namespaces,
    TenantNotFound,
)
from geminga.clock import RealClock
from geminga.errors import Conflict, InvalidName, NamespaceNotFound, PeerError
from geminga.metadata import records
from geminga.metadata.records import TenantRecord
from geminga.metadata.store import MetadataStore
from geminga.names import NamespaceName, TopicName

ACME = TenantRecord(admin_roles=["a"], allowed_clusters=["standalone"])


@pytest.fixture
async def namespaces(store: MetadataStore) -> Namespaces:
    made = Namespaces(store, RealClock(), cluster="standalone")
    await made.bootstrap()
    return made


async def test_bootstrap_makes_what_every_pulsar_has_and_keeps_what_is_there(
    store: MetadataStore, namespaces: Namespaces
) -> None:
    name = NamespaceName.parse("public/default")
    await namespaces.change_policies(name, lambda _: {"message_ttl_in_seconds": 7})
    again = Namespaces(store, RealClock(), cluster="standalone")
    await again.bootstrap()
    assert sorted(again.each_tenant()) == ["public", "pulsar"]
    assert await again.all_namespaces() == ["public/default", "pulsar/system"]
    assert again.tenant("public").allowed_clusters == ["standalone"]
    assert again.policies(name)["message_ttl_in_seconds"] == 7


async def test_tenants_are_created_changed_and_deleted(namespaces: Namespaces) -> None:
    await namespaces.create_tenant("acme", ACME)
    assert namespaces.tenant("acme").admin_roles == ["a"]
    with pytest.raises(Conflict, match="^Tenant already exist$"):
        await namespaces.create_tenant("acme", ACME)
    await namespaces.update_tenant("acme", TenantRecord(admin_roles=["b"], allowed_clusters=["standalone"]))
    assert namespaces.tenant("acme").admin_roles == ["b"]
    await namespaces.delete_tenant("acme")
    with pytest.raises(TenantNotFound, match="^Tenant does not exist$"):
        namespaces.tenant("acme")
    with pytest.raises(TenantNotFound, match="^Tenant acme not found$"):
        await namespaces.update_tenant("acme", ACME)
    with pytest.raises(TenantNotFound, match="^Tenant doesn't exist$"):
        await namespaces.delete_tenant("acme")


@pytest.mark.parametrize(
    ("name", "clusters", "error", "text"),
    [
        ("acme", [], ClusterNotAllowed, "Clusters cannot be empty or blank"),
        ("acme", [" "], ClusterNotAllowed, "Clusters cannot be empty or blank"),
        ("acme", ["nowhere"], ClusterNotAllowed, "Clusters do not exist"),
        ("bad name", ["standalone"], InvalidName, "Tenant name is not valid"),
        ("bad$name", ["standalone"], InvalidName, "Tenant name is not valid"),
    ],
)
async def test_a_tenant_that_pulsar_refuses(
    namespaces: Namespaces, name: str, clusters: list[str], error: type[PeerError], text: str
) -> None:
    with pytest.raises(error, match=f"^{text}$"):
        await namespaces.create_tenant(name, TenantRecord(allowed_clusters=clusters))
    assert error.http_status == 412
    assert sorted(namespaces.each_tenant()) == ["public", "pulsar"]


async def test_namespaces_are_created_and_deleted(namespaces: Namespaces) -> None:
    await namespaces.create_tenant("acme", ACME)
    name = NamespaceName.parse("acme/n1")
    with pytest.raises(NamespaceNotFound):
        namespaces.check_exists(name)
    await namespaces.create(name, {"bundles": {"numBundles": 2}, "unknown_to_us": {"kept": True}})
    namespaces.check_exists(name)
    assert sorted(namespaces.each_namespace("acme")) == ["acme/n1"]
    policies = namespaces.policies(name)
    assert policies["bundles"] == {"boundaries": ["0x00000000", "0x80000000", "0xffffffff"], "numBundles": 2}
    assert policies["unknown_to_us"] == {"kept": True}
    assert policies["replication_clusters"] == ["standalone"]
    with pytest.raises(Conflict, match="^Namespace already exists$"):
        await namespaces.create(name)
    with pytest.raises(Conflict, match="^The tenant still has active namespaces$"):
        await namespaces.delete_tenant("acme")
    await namespaces.delete(name)
    with pytest.raises(NamespaceNotFound, match=r"^Namespace acme/n1 does not exist\.$"):
        await namespaces.delete(name)
    await namespaces.delete_tenant("acme")


async def test_a_namespace_needs_its_tenant_and_its_clusters(namespaces: Namespaces) -> None:
    with pytest.raises(TenantNotFound, match="^Tenant does not exist$"):
        await namespaces.create(NamespaceName.parse("nope/n1"))
    with pytest.raises(TenantNotFound, match="^Tenant not found$"):
        namespaces.each_namespace("nope")
    with pytest.raises(ClusterNotAllowed):
        await namespaces.create(NamespaceName.parse("public/n"), {"replication_clusters": ["zz"]})
    with pytest.raises(PeerError):
        await namespaces.create(NamespaceName.parse("public/n"), {"bundles": {"numBundles": -1}})
    assert sorted(namespaces.each_namespace("public")) == ["public/default"]


async def test_a_namespace_with_topics_stays(store: MetadataStore, namespaces: Namespaces) -> None:
    topic = TopicName.parse("persistent://public/default/x")
    await store.put(records.partitioned_topic_path(topic), b"{}")
    with pytest.raises(Conflict, match="^Cannot delete non empty namespace$"):
        await namespaces.delete(topic.namespace)


async def test_deleting_a_tenant_beside_creating_its_namespace_leaves_no_orphan(
    namespaces: Namespaces,
) -> None:
    await namespaces.create_tenant("acme", ACME)
    name = NamespaceName.parse("acme/n1")
    outcomes = []

    async def attempt(what: str, call: object, *arguments: object) -> None:
        try:
            await call(*arguments)  # type: ignore[operator]
            outcomes.append(what)
        except PeerError:
            pass

    async with trio.open_nursery() as nursery:
        nursery.start_soon(attempt, "created", namespaces.create, name)
        nursery.start_soon(attempt, "deleted", namespaces.delete_tenant, "acme")
    assert len(outcomes) == 1, "exactly one of the two may win"
    assert ("acme" in namespaces.each_tenant()) == (outcomes == ["created"])


async def test_policies_are_set_and_taken_away(namespaces: Namespaces) -> None:
    name = NamespaceName.parse("public/default")
    await namespaces.change_policies(name, lambda _: {"retention_policies": {"retentionTimeInMinutes": 5}})
    assert namespaces.policies(name)["retention_policies"] == {"retentionTimeInMinutes": 5}
    await namespaces.change_policies(name, lambda _: {})
    assert "retention_policies" not in namespaces.policies(name)


def test_bundles_cover_the_hash_range() -> None:
    assert bundle_boundaries(4) == ["0x00000000", "0x40000000", "0x80000000", "0xc0000000", "0xffffffff"]
    assert bundle_boundaries(1) == ["0x00000000", "0xffffffff"]
