"""What Spark says when something failed, without its pages: our own words from a worker, or the innermost
cause.
"""

from __future__ import annotations

import re
from typing import Final

from geminga.errors import CorruptData, GemingaError, StorageError
from geminga.pipeline.audit.events import WrongLog
from geminga.pipeline.errors import PipelineError
from geminga.pipeline.topics.reading import DataLost

_OURS: Final = re.compile(r"\bgeminga\.[\w.]+\.(\w+): (.*)")
_THEIRS: Final = re.compile(r"^(?:Caused by: |: )?([\w.$]+(?:Exception|Error): .*)", re.MULTILINE)
_KNOWN: Final[dict[str, type[GemingaError]]] = {
    kind.__name__: kind for kind in (CorruptData, DataLost, StorageError, WrongLog)
}


def words_of(error: BaseException) -> str:
    """One line."""
    return _said(error)[1]


def failure_of(error: BaseException) -> GemingaError:
    """The error that was raised in a worker, if it is one of those that callers tell apart, else a
    `PipelineError`.
    """
    kind, text = _said(error)
    return _KNOWN.get(kind, PipelineError)(text)


def is_ours(error: BaseException) -> bool:
    """Whether a worker raised it on purpose."""
    return _OURS.search(str(error)) is not None


def _said(error: BaseException) -> tuple[str, str]:
    text = str(error)
    ours = _OURS.findall(text)
    if ours:
        kind, said = ours[-1]
        return kind, said
    theirs = _THEIRS.findall(text)
    return "", theirs[-1] if theirs else text.strip().partition("\n")[0]
