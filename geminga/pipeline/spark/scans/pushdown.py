"""Spark's filters as conditions that a plan can use."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql import datasource as ds

from geminga.pipeline.topics.pruning import Condition

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_WITH_VALUE: Final[dict[type[ds.Filter], str]] = {
    ds.EqualTo: "=",
    ds.EqualNullSafe: "=",
    ds.LessThan: "<",
    ds.LessThanOrEqual: "<=",
    ds.GreaterThan: ">",
    ds.GreaterThanOrEqual: ">=",
    ds.StringStartsWith: "starts",
    ds.StringEndsWith: "ends",
    ds.StringContains: "contains",
}


def condition_of(filter_: ds.Filter, *, negated: bool = False) -> Condition | None:
    """None: nothing can be left out because of it."""
    if isinstance(filter_, ds.Not):
        return None if negated else condition_of(filter_.child, negated=True)
    path: tuple[str, ...] = getattr(filter_, "attribute", ())
    if len(path) != 1:
        return None
    (column,) = path
    if isinstance(filter_, ds.IsNull | ds.IsNotNull):
        found = Condition(column, "null", negated=negated is not isinstance(filter_, ds.IsNotNull))
    elif isinstance(filter_, ds.In):
        # `x not in (1, null)` is never true, and `null` in a list never equals anything
        if negated and None in filter_.value:
            return None
        values = tuple(_plain(value) for value in filter_.value if value is not None)
        found = Condition(column, "in", values, negated)
    else:
        comparison = _WITH_VALUE.get(type(filter_))
        value = getattr(filter_, "value", None)
        if comparison is None or value is None:
            return None
        if isinstance(filter_, ds.EqualNullSafe) and negated:
            return None  # unlike `<>` it holds where there is no value
        found = Condition(column, comparison, (_plain(value),), negated)
    return found if found.prunes else None


def conditions_of(filters: Iterable[ds.Filter]) -> list[Condition]:
    return [found for found in map(condition_of, filters) if found is not None]


def _plain(value: Any) -> Any:
    """A time as microseconds since 1970; one without a time zone is of another type than the column."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return (value - _EPOCH) // timedelta(microseconds=1)
    return value
