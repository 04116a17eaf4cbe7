"""The errors of the pipeline, and the access data of a broker.

Every exception that the pipeline raises on purpose is a `PipelineError`, and its text says what to do next:
which option to set, and to what. Errors that only one package raises and handles (`SchemaMismatch`,
`NotSent`) are defined there; this one has those that several packages share. `Access` is beside them because
a client of a broker and a plan that is sent to a worker both contain it.

An error has parts (text, `Option`s, other errors), so that it carries the options that it is about. `str`
names options as Spark and Python do; the command line names its flags instead, with `told_with`. Values from
a user or a broker (a path, a topic) are plain text, whatever they look like.

Must not be broken: no socket, thread or file here, since pure modules raise these errors too; `Access` never
prints its credentials; no code searches a finished text for the name of an option.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from geminga.client.refusal import Refusal
from geminga.errors import GemingaError


@dataclass(frozen=True)
class Option:
    """An option of the data source, or an argument of a function in Python, that an error names."""

    name: str
    value: str | None = None
    """The value to set; None: only the option's name is meant."""
    verb: Literal["", "set", "Set"] = ""
    """The verb before the option in a text that tells users to set it: "set" for an option, "give" for a
    flag.
    """

    def __str__(self) -> str:
        setting = self.name if self.value is None else f"{self.name}={self.value}"
        return f"{self.verb} {setting}" if self.verb else setting


SERVICE_URL = Option("service.url")
ADMIN_URL = Option("admin.url")
TOPICS_PATTERN = Option("topicsPattern")
POLL_TIMEOUT = Option("pollTimeoutMs")
SET_RAW_VALUE = Option("rawValue", "true", "set")
ALLOW_LOSS = Option("failOnDataLoss", "false", "Set")
WARN_OF_UNKNOWN_END = Option("unknownLedgerEnd", "warn", "Set")
Part: TypeAlias = "str | Option | PipelineError"


class PipelineError(GemingaError):
    """An operation that failed, with a text that has the next step. `parts` follow each other without
    spaces; an error among them contributes its own parts.
    """

    def __init__(self, *parts: Part) -> None:
        self.parts: tuple[str | Option, ...] = tuple(
            part for each in parts for part in (each.parts if isinstance(each, PipelineError) else (each,))
        )
        super().__init__(*self.parts)

    def __str__(self) -> str:
        return self.told_with(str)

    def told_with(self, name: Callable[[Option], str]) -> str:
        """The text, with the result of `name` for each option."""
        return "".join(part if isinstance(part, str) else name(part) for part in self.parts)


class BadOption(PipelineError):
    """An option that is unknown, missing, or has an invalid value."""


class BrokerUnreachable(PipelineError):
    """No broker answers at an address, or the connection ended. A retry may help."""


class Refused(PipelineError):
    """The broker answered with an error."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(str(Refusal(code, text)))
        self.code = code
        self.text = text


class TopicMissing(PipelineError):
    """A missing topic."""


class DataLost(PipelineError):
    """Messages of the requested range no longer exist."""


class AdminRefused(PipelineError):
    """The admin API answered with another status than 200 or 204. `reason`: its reason, if any."""

    def __init__(self, status: int, url: str, reason: str) -> None:
        access = "; see the options pulsar.admin.authPluginClassName and pulsar.admin.authParams"
        said = f": {reason}" if reason else ""
        super().__init__(f"{url} answers {status}{said}{access if status in (401, 403) else ''}")
        self.status = status
        self.reason = reason


@dataclass(frozen=True)
class Access:
    """The URLs of brokers and the credentials. Travels to the workers."""

    service_url: str
    auth_method: str | None = None
    auth_data: bytes | None = None
    trust_certificates: str | None = None
    """A file; None: the system's certificates."""
    allow_insecure: bool = False
    verify_hostname: bool = True
    certificate: str | None = None
    certificate_key: str | None = None
    """Files with the certificate that a broker may request."""
    reader_name: str = "geminga-reader"
    """The prefix of the names of readers' subscriptions."""
    public_key: str | None = None
    private_key: str | None = None
    """Files; for encrypted messages."""
    patience_s: float = 0.0
    """How long to wait for a broker that was there and is away, if that is longer than usual."""
    reads_undecrypted: bool = False
    """Whether a message that no key opens is a row without a value; else it is an error."""

    def __repr__(self) -> str:
        """Without the credentials."""
        return f"Access({self.service_url})"
