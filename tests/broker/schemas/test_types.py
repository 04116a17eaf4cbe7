"""KEY_VALUE schemas that no client of Pulsar's makes."""

from __future__ import annotations

import pytest

from geminga.broker.schemas.checks import validate
from geminga.broker.schemas.types import SchemaInvalid, TopicSchema, data_from_text, key_and_value

EMPTY_PAIR = bytes(8)


@pytest.mark.parametrize("inner", ['{"key.schema.properties":5}', '{"key.schema.type":[1]}', "[]", "7"])
def test_properties_inside_that_are_no_texts_are_left_out(inner: str) -> None:
    data = len(EMPTY_PAIR).to_bytes(4, "big") + EMPTY_PAIR + bytes(4)
    properties = {"key.schema.type": "KEY_VALUE", "key.schema.properties": inner}
    schema = TopicSchema("KEY_VALUE", data, properties)
    validate(schema)
    assert key_and_value(schema)[0] == TopicSchema("KEY_VALUE", EMPTY_PAIR, {})


def test_half_a_character_is_refused() -> None:
    with pytest.raises(SchemaInvalid, match="key"):
        data_from_text("KEY_VALUE", '{"key":"\\ud800","value":""}')
