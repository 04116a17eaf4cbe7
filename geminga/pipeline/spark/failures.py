"""What Spark says when something failed, without its pages: our own words from a worker, or the innermost
cause. The methods that Spark calls raise our errors `in_own_words`.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any, Final, TypeVar, cast

from geminga.errors import CorruptData, GemingaError, StorageError
from geminga.pipeline.audit.events import WrongLog
from geminga.pipeline.errors import (
    BadOption,
    BrokerUnreachable,
    DataLost,
    Option,
    PipelineError,
    TopicMissing,
)
from geminga.pipeline.values.avro_shapes import BadValue, SchemaMismatch
from geminga.pipeline.values.avro_writing import BadColumns

F = TypeVar("F", bound=Callable[..., Any])

_OURS: Final = re.compile(r"\bgeminga\.[\w.]+\.(\w+): (.*)")
_THEIRS: Final = re.compile(r"^(?:Caused by: |: )?([\w.$]+(?:Exception|Error): .*)", re.MULTILINE)
_PARTS: Final = re.compile(r"^geminga parts: (.*)", re.MULTILINE)
_KNOWN: Final[dict[str, type[GemingaError]]] = {
    kind.__name__: kind
    for kind in (
        BadColumns,
        BadOption,
        BadValue,
        BrokerUnreachable,
        CorruptData,
        DataLost,
        SchemaMismatch,
        StorageError,
        TopicMissing,
        WrongLog,
    )
}


def in_own_words(function: F) -> F:
    """Its errors of ours have no frames but one: Spark shows users the whole traceback as text, and an error
    that was raised on purpose needs none. A bug keeps all of them.
    """
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def generate(*arguments: Any, **named: Any) -> Iterator[Any]:
            try:
                yield from function(*arguments, **named)
            except PipelineError as error:
                raise error.with_traceback(None) from None

        return cast("F", generate)

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except PipelineError as error:
            raise error.with_traceback(None) from None

    return cast("F", call)


def note_parts(error: PipelineError) -> None:
    """Have a worker's traceback, which is all that comes back through Spark, tell the options of an error
    apart from its text: the line after the error's own has the parts as JSON.
    """
    if any(isinstance(part, Option) for part in error.parts):
        parts = [part if isinstance(part, str) else asdict(part) for part in error.parts]
        error.add_note(f"geminga parts: {json.dumps(parts)}")


def words_of(error: BaseException) -> str:
    """One line."""
    return _said(error)[1]


def failure_of(error: BaseException) -> GemingaError:
    """What Spark's error was made of: the error that was raised in a worker, or in the driver for Spark, if
    it is one of those that callers tell apart, else a `PipelineError`.
    """
    kind, text = _said(error)
    found = _KNOWN.get(kind, PipelineError)
    return found(*_parts(error, text)) if issubclass(found, PipelineError) else found(text)


def is_ours(error: BaseException) -> bool:
    """Whether a worker raised it on purpose."""
    return _OURS.search(str(error)) is not None


def _parts(error: BaseException, text: str) -> list[str | Option]:
    """Of the error with this text, as its worker has noted them; if it has not, all is text."""
    for noted in _PARTS.findall(str(error)):
        parts = [part if isinstance(part, str) else Option(**part) for part in json.loads(noted)]
        if "".join(map(str, parts)) == text:
            return parts
    return [text]


def _said(error: BaseException) -> tuple[str, str]:
    text = str(error)
    ours = _OURS.findall(text)
    if ours:
        kind, said = ours[-1]
        return kind, said
    theirs = _THEIRS.findall(text)
    return "", theirs[-1] if theirs else text.strip().partition("\n")[0]
