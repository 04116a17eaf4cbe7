"""The schemas that values are written with, as the options `valueSchema` and `keySchema` name them. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

from geminga.wire import pulsar_pb2 as pb

_TYPE = pb.Schema.Type


class Primitive(NamedTuple):
    """A schema whose values are one number or text."""

    kind: int
    name: str
    """That the Java client gives it."""
    takes: str
    """The types of columns, in words."""


PRIMITIVE_SCHEMAS: Final = {
    "string": Primitive(_TYPE.String, "String", "string"),
    "boolean": Primitive(_TYPE.Bool, "Boolean", "boolean"),
    "int8": Primitive(_TYPE.Int8, "INT8", "tinyint to bigint"),
    "int16": Primitive(_TYPE.Int16, "INT16", "tinyint to bigint"),
    "int32": Primitive(_TYPE.Int32, "INT32", "tinyint to bigint"),
    "int64": Primitive(_TYPE.Int64, "INT64", "tinyint to bigint"),
    "float": Primitive(_TYPE.Float, "Float", "float"),
    "double": Primitive(_TYPE.Double, "Double", "float or double"),
    "date": Primitive(_TYPE.Date, "Date", "date"),
    "time": Primitive(_TYPE.Time, "Time", "milliseconds of the day as bigint"),
    "timestamp": Primitive(_TYPE.Timestamp, "Timestamp", "timestamp"),
    "instant": Primitive(_TYPE.Instant, "Instant", "timestamp"),
    "local_date": Primitive(_TYPE.LocalDate, "LocalDate", "date"),
    "local_time": Primitive(_TYPE.LocalTime, "LocalTime", "nanoseconds of the day as bigint"),
    "local_date_time": Primitive(_TYPE.LocalDateTime, "LocalDateTime", "timestamp_ntz"),
}
"""Java's names of them, in lower case."""
VALUE_SCHEMAS: Final = ("auto", "avro", "json", "none", *PRIMITIVE_SCHEMAS)
PAIR_ENCODINGS: Final = ("inline", "separated")
"""Java's words for where the key of a pair is: before the value, or in the place of the message's key."""


def java_type(kind: int | None) -> str:
    """The name that Java gives a type in the properties of a key-value schema; None: bytes."""
    if kind is None:
        return "BYTES"
    if kind == _TYPE.Avro:
        return "AVRO"
    if kind == _TYPE.Json:
        return "JSON"
    return next(word for word, each in PRIMITIVE_SCHEMAS.items() if each.kind == kind).upper()
