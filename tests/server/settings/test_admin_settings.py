"""Every key that the admin API reads itself changes its answers, and no others."""

from __future__ import annotations

import pytest

from tests.server.settings.admin_rows import ADMIN_ROWS, BINARY_PORT, WEB_PORT, admin_leaves
from tests.server.settings.rows import LOCAL_HOST, Row, changes, config_of


@pytest.mark.parametrize("row", ADMIN_ROWS, ids=lambda row: row.key)
async def test_a_key_changes_its_own_answers_and_no_others(row: Row) -> None:
    before = await admin_leaves(config_of(row.given))
    after = await admin_leaves(config_of({**row.given, row.key: row.value}))
    assert changes(before, after) == row.expected


async def test_what_is_answered_without_any_key() -> None:
    assert await admin_leaves(config_of({})) == {
        "metric labels": ["cluster", "namespace", "subscription", "topic"],
        "metric clusters": ["standalone"],
        "metric levels": ["ledger"],
        "three partitions": "",
        "two grow to three": "",
        "damage": "NotAllowed",
        "leader": f"http://{LOCAL_HOST}:{WEB_PORT}",
        "lookup": f"pulsar://{LOCAL_HOST}:{BINARY_PORT}",
        "clusters": ["standalone"],
        "default cluster": f"pulsar://{LOCAL_HOST}:{BINARY_PORT}",
    }
