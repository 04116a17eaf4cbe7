"""What an operator may set that is no policy of a namespace: other clusters, resource groups, racks, quotas.

Most of it has no meaning in one process. It is kept as the JSON that came in, a record for each document, so
that what was set is returned, after a restart too.
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
"""What `change` gets for a document that is not there; returned, it deletes the document."""


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
        """Of the documents right below, sorted."""
        return sorted(map(decode_name, self._metadata.children(records.document_path(kind, *names))))

    async def change(self, kind: str, *names: str, change: Callable[[Any], Any]) -> None:
        """Replace a document by what `change` makes of it, durable on return; it may be called again when
        another write came first; what it raises is raised.
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
        """May be repeated."""
        await self.change(kind, *names, change=lambda old: ABSENT)
