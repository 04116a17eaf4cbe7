"""What the pipeline could not do, and the broker it asked.

Every exception that the pipeline raises on purpose is a `PipelineError`, and its text says what to do next:
which option to set, and to what. Those that only one package raises (`DataLost`, `SchemaMismatch`...) are
defined there; these are the ones that several share. `Access` is beside them because a client of a broker
and a plan that travels to a worker both carry it.

Must not be broken: no socket, thread or file here, as pure modules raise these too; `Access` never prints
its credentials.
"""

from __future__ import annotations

from dataclasses import dataclass

from geminga.errors import GemingaError, ServerError


class PipelineError(GemingaError):
    """What could not be done, in words that say what to do about it."""


class BadOption(PipelineError):
    """An option that is unknown, missing, or has a value that means nothing."""


class BrokerUnreachable(PipelineError):
    """Nobody answers at an address, or the connection ended. Trying again may help."""


class Refused(PipelineError):
    """The broker answered with an error."""

    def __init__(self, code: int, text: str) -> None:
        name = ServerError(code).name if code in ServerError.__members__.values() else str(code)
        super().__init__(f"the broker refused ({name}): {text}")
        self.code = code
        self.text = text


@dataclass(frozen=True)
class Access:
    """Where brokers are and how to introduce oneself. Travels to the workers."""

    service_url: str
    auth_method: str | None = None
    auth_data: bytes | None = None
    trust_certificates: str | None = None
    """A file; None: the system's."""
    allow_insecure: bool = False
    verify_hostname: bool = True
    certificate: str | None = None
    certificate_key: str | None = None
    """Files; what a broker that asks for it gets to see."""
    reader_name: str = "geminga-reader"
    """What the names of readers' subscriptions begin with."""
    public_key: str | None = None
    private_key: str | None = None
    """Files; for encrypted messages."""

    def __repr__(self) -> str:
        """Without the credentials."""
        return f"Access({self.service_url})"
