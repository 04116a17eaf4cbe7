"""The brokers that a service URL names."""

from __future__ import annotations

from urllib.parse import urlsplit

from geminga.pipeline.errors import SERVICE_URL, PipelineError

DEFAULT_PORTS = {"pulsar": 6650, "pulsar+ssl": 6651}


def addresses(service_url: str) -> list[tuple[str, str, int]]:
    """(scheme, host, port) of each broker in pulsar://host:port[,host:port...]. Raises `PipelineError`."""
    scheme, separator, rest = service_url.partition("://")
    if not separator or scheme not in DEFAULT_PORTS:
        raise PipelineError(
            SERVICE_URL, f" is {service_url!r}; expected pulsar://HOST:PORT or pulsar+ssl://HOST:PORT"
        )
    found = []
    for part in rest.rstrip("/").split(","):
        try:
            parts = urlsplit(f"{scheme}://{part}")
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if not host:
            raise PipelineError(SERVICE_URL, f" is {service_url!r}: {part!r} is not HOST:PORT")
        found.append((scheme, host, port or DEFAULT_PORTS[scheme]))
    return found
