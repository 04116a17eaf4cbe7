"""Which broker serves a topic."""

from __future__ import annotations

import math

from geminga.pipeline.client.connection import Connection
from geminga.pipeline.errors import Access, PipelineError, Refused
from geminga.wire import client_commands
from geminga.wire import pulsar_pb2 as pb

_REDIRECTS_MAX = 20


def owner_of(access: Access, topic: str, *, until_s: float = math.inf) -> Connection:
    """A connection to the broker that serves the topic, found by LOOKUP, all of it until then (of the
    monotonic clock). Raises `PipelineError`.
    """
    url: str | None = None
    authoritative = False
    for _ in range(_REDIRECTS_MAX):
        connection = Connection.open(access, url, until_s=until_s)
        try:
            answer = connection.request(
                lambda number: client_commands.lookup(number, topic, authoritative=authoritative)  # noqa: B023
            )
        except Refused as error:
            connection.close()
            missing = "namespace not found" in error.text.lower()
            hint = "; create it (pulsar-admin namespaces create TENANT/NAMESPACE)" if missing else ""
            raise Refused(error.code, f"{topic}: {error.text}{hint}") from None
        except BaseException:
            connection.close()
            raise
        scheme = connection.url.partition("://")[0]
        target = answer.brokerServiceUrlTls if scheme == "pulsar+ssl" else answer.brokerServiceUrl
        if answer.response == pb.CommandLookupTopicResponse.Connect and (
            answer.proxy_through_service_url or not target or target.rstrip("/") == connection.url
        ):
            return connection
        connection.close()
        url, authoritative = target, answer.authoritative
        if answer.response == pb.CommandLookupTopicResponse.Connect:
            return Connection.open(access, url, until_s=until_s)
    raise PipelineError(
        f"{topic}: brokers refer to each other {_REDIRECTS_MAX} times; none of them serves it"
    )
