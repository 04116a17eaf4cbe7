"""Which broker serves a topic."""

from __future__ import annotations

import math

from geminga.client.lookup import REDIRECTS_MAX, Lookup
from geminga.pipeline.client.connection import Connection
from geminga.pipeline.errors import Access, PipelineError, Refused


def owner_of(access: Access, topic: str, *, until_s: float = math.inf) -> Connection:
    """A connection to the broker that serves the topic, found by LOOKUP, all of it until then (of the
    monotonic clock). Raises `PipelineError`.
    """
    lookup = Lookup(topic)
    for _ in range(REDIRECTS_MAX):
        connection = Connection.open(access, lookup.url, until_s=until_s)
        try:
            owner = lookup.hear(connection.request(lookup.request), connection.url)
        except Refused as error:
            connection.close()
            raise refused_lookup(topic, error) from None
        except BaseException:
            connection.close()
            raise
        if owner == connection.url:
            return connection
        connection.close()
        if owner is not None:
            return Connection.open(access, owner, until_s=until_s)
    raise PipelineError(lookup.endless)


def refused_lookup(topic: str, error: Refused) -> Refused:
    """With the name of the topic, and what to do where a namespace is missing."""
    missing = "namespace not found" in error.text.lower()
    hint = "; create it (pulsar-admin namespaces create TENANT/NAMESPACE)" if missing else ""
    return Refused(error.code, f"{topic}: {error.text}{hint}")
