"""Which broker serves a topic."""

from __future__ import annotations

import math

from geminga.pipeline.client.connection import Connection
from geminga.pipeline.errors import Access, PipelineError, Refused
from geminga.wire import client_commands
from geminga.wire import pulsar_pb2 as pb

REDIRECTS_MAX = 20


def owner_of(access: Access, topic: str, *, until_s: float = math.inf) -> Connection:
    """A connection to the broker that serves the topic, found by LOOKUP, all of it until then (of the
    monotonic clock). Raises `PipelineError`.
    """
    url: str | None = None
    authoritative = False
    for _ in range(REDIRECTS_MAX):
        connection = Connection.open(access, url, until_s=until_s)
        try:
            answer = connection.request(
                lambda number: client_commands.lookup(number, topic, authoritative=authoritative)  # noqa: B023
            )
        except Refused as error:
            connection.close()
            raise refused_lookup(topic, error) from None
        except BaseException:
            connection.close()
            raise
        url, serves = target_of(answer, connection.url)
        if serves and url == connection.url:
            return connection
        connection.close()
        authoritative = answer.authoritative
        if serves:
            return Connection.open(access, url, until_s=until_s)
    raise PipelineError(f"{topic}: brokers refer to each other {REDIRECTS_MAX} times; none of them serves it")


def target_of(answer: pb.CommandLookupTopicResponse, asked_url: str) -> tuple[str, bool]:
    """The broker that an answer to LOOKUP names, and whether it serves the topic; else it is to be asked."""
    scheme = asked_url.partition("://")[0]
    target = answer.brokerServiceUrlTls if scheme == "pulsar+ssl" else answer.brokerServiceUrl
    serves = answer.response == pb.CommandLookupTopicResponse.Connect
    if serves and (answer.proxy_through_service_url or not target or target.rstrip("/") == asked_url):
        return asked_url, True
    return target, serves


def refused_lookup(topic: str, error: Refused) -> Refused:
    """With the name of the topic, and what to do where a namespace is missing."""
    missing = "namespace not found" in error.text.lower()
    hint = "; create it (pulsar-admin namespaces create TENANT/NAMESPACE)" if missing else ""
    return Refused(error.code, f"{topic}: {error.text}{hint}")
