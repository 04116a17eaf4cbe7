"""What `read_topic` returns: the methods of a `pyarrow.RecordBatchReader`, and the pipeline's own errors.

Arrow's own reader loses the class of an error, and puts the text between a traceback and words of its own, if
the reader can be closed before its end.
"""

from __future__ import annotations

from collections.abc import Generator
from types import TracebackType
from typing import Any, Self

import pyarrow as pa


class TopicReader:
    """Reads when asked for a batch. Arrow's C stream, by which other libraries take it, takes over what is
    left to read: the reader is closed then.
    """

    def __init__(self, schema: pa.Schema, batches: Generator[pa.RecordBatch]) -> None:
        self._schema = schema
        self._batches: Generator[pa.RecordBatch] | None = batches

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> pa.RecordBatch:
        """Raises `PipelineError`, and `pyarrow.ArrowInvalid` if the reader is closed. An error closes it: the
        next call must not look like the end.
        """
        try:
            return next(self._left())
        except StopIteration:
            raise
        except BaseException:
            self._batches = None
            raise

    def read_next_batch(self) -> pa.RecordBatch:
        """As `next`, with `StopIteration` at the end."""
        return next(self)

    def read_all(self) -> pa.Table:
        return pa.Table.from_batches(self, self._schema)

    def read_pandas(self, **options: Any) -> Any:
        """A DataFrame; options are those of `pyarrow.Table.to_pandas`."""
        return self.read_all().to_pandas(**options)

    def cast(self, target_schema: pa.Schema) -> pa.RecordBatchReader:
        """An Arrow reader of what is left, with these types."""
        return pa.RecordBatchReader.from_stream(self).cast(target_schema)

    def close(self) -> None:
        """End the connection, if the last batch has not been read."""
        if self._batches is not None:
            self._batches.close()
            self._batches = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        left = self._left()
        stream = pa.RecordBatchReader.from_batches(self._schema, left).__arrow_c_stream__(requested_schema)
        self._batches = None
        return stream

    def _left(self) -> Generator[pa.RecordBatch]:
        if self._batches is None:
            raise pa.ArrowInvalid("the reader of a topic is closed")
        return self._batches
