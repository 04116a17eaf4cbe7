"""Settings of an operator that are no policy of a namespace: other clusters, resource groups, racks, quotas.

Most of them have no meaning in one process. Each is stored as the JSON of the request, in a record of its
own, and returned, even after a restart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from geminga.errors import BadVersion, KeyMissing
from geminga.metadata import records
from geminga.metadata.records import DocumentRecord
from geminga.metadata.store import MUST_NOT_EXIST, MetadataStore
from geminga.names import decode_name

CLUSTERS: Final = "clusters"
FAILURE_DOMAINS: Final = "failure-domains"
ISOLATION_POLICIES: Final = "isolation-policies"
RESOURCE_GROUPS: Final = "resource-groups"
RESOURCE_QUOTAS: Final = "resource-quotas"
BOOKIE_RACKS: Final = "bookie-racks"
DYNAMIC_CONFIGURATION: Final = "dynamic-configuration"

ABSENT: Final = object()
"""The value that `change` gets for a missing document. If `change` returns it, the document is deleted."""


class Documents:
    """The documents of one broker, by kind and one or more names. Reads are plain calls."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata

    def get(self, kind: str, *names: str) -> Any:
        """The JSON, or `ABSENT`."""
        path = records.document_path(kind, *names)
        stored = self._metadata.get(path)
        return ABSENT if stored is None else records.decode(DocumentRecord, stored.value, path).value

    def names(self, kind: str, *names: str) -> list[str]:
        """Names of the documents directly below, sorted."""
        return sorted(map(decode_name, self._metadata.children(records.document_path(kind, *names))))

    async def change(self, kind: str, *names: str, change: Callable[[Any], Any]) -> None:
        """Replace a document by the result of `change`, durable on return. `change` may be called again when
        another write came first; its exceptions are raised.
        """
        path = records.document_path(kind, *names)
        while True:
            stored = self._metadata.get(path)
            old = ABSENT if stored is None else records.decode(DocumentRecord, stored.value, path).value
            new = change(old)
            if new is old:
                return
            try:
                if new is not ABSENT:
                    version = MUST_NOT_EXIST if stored is None else stored.version
                    await self._metadata.put(path, records.encode(DocumentRecord(value=new)), version)
                elif stored is not None:
                    await self._metadata.delete(path, stored.version)
                return
            except (BadVersion, KeyMissing):
                continue

    async def put(self, kind: str, *names: str, value: Any) -> None:
        await self.change(kind, *names, change=lambda old: value)

    async def delete(self, kind: str, *names: str) -> None:
        """Delete a document. May be repeated."""
        await self.change(kind, *names, change=lambda old: ABSENT)
