"""The metadata store, with faults in its writes."""

from __future__ import annotations

from collections.abc import Sequence

from geminga.chaos.rules.deciding import Armed, Facts
from geminga.chaos.rules.faults import Faults
from geminga.chaos.rules.killing import Points
from geminga.chaos.rules.waiting import wait_while
from geminga.errors import BadVersion, StorageError
from geminga.metadata.records import LEDGERS, MANAGED_LEDGERS
from geminga.metadata.space_reserve import SpaceReserve
from geminga.metadata.store import Delete, MetadataStore, Put
from geminga.storage.key_value import KeyValue
from geminga.tracker.format.stored_bucket import KEY_PREFIX

_BUCKET = KEY_PREFIX.encode()
_CURSOR = b'"record":"cursor"'


class FaultyMetadata(MetadataStore):
    """A write is hit if one of its paths is selected."""

    def __init__(self, key_value: KeyValue, reserve: SpaceReserve | None = None, *, faults: Faults) -> None:
        super().__init__(key_value, reserve)
        self._door = faults.doors["metadata"]
        self._points = Points(faults.doors["process"])

    async def transact(
        self, puts: Sequence[Put], deletes: Sequence[Delete] = (), *, is_urgent: bool = False
    ) -> list[int]:
        if self._door.armed:
            await self._failed([put.path for put in puts] + [delete.path for delete in deletes])
        if not self._points.door.armed:
            return await super().transact(puts, deletes, is_urgent=is_urgent)
        points = [name for put in puts for name in self._points_of(put, puts)]
        if "bucket-sealed" in points:
            self._points.passed("bucket-sealed-before-metadata")
        versions = await super().transact(puts, deletes, is_urgent=is_urgent)
        for name in (*points, "metadata-written"):
            self._points.passed(name)
        return versions

    async def _failed(self, paths: Sequence[str]) -> None:
        """Wait or raise as the rules say; each is asked for each path until one hits."""
        hit: list[Armed] = []
        for path in paths:
            hit += self._door.hit(Facts(path=path, operation="write"))
            if hit:
                break
        for one in hit:
            if one.rule.kind == "delayed":
                await wait_while(self._door, one, one.rule.latency_ms / 1000)
        kinds = {one.rule.kind for one in hit}
        if "refused" in kinds:
            raise StorageError(f"{path}: the write was refused (injected)")
        if "conflict" in kinds:
            raise BadVersion(f"{path}: the node was changed by another writer (injected)")

    def _points_of(self, put: Put, puts: Sequence[Put]) -> list[str]:
        """The points that the process passes once this node is written."""
        if not put.path.startswith(f"{MANAGED_LEDGERS}/"):
            return []
        points = []
        named = put.value.count(_BUCKET)
        before = self.get(put.path) if named else None
        if named > (before.value.count(_BUCKET) if before is not None else 0):
            points.append("bucket-sealed")
        if _CURSOR in put.value:
            points.append("cursor-written")
        elif any(other.path.startswith(f"{LEDGERS}/") for other in puts):
            points.append("ledger-rolled")
        return points
