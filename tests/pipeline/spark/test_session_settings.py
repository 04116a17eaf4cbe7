"""What sessions are started with, without a JVM: it would only hand the settings on."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from geminga.pipeline.spark import make_session
from geminga.pipeline.spark.pieces import started


class Started(Exception):
    """Instead of a start, with the settings of the session."""


@pytest.fixture
def settings_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    def start(builder: SparkSession.Builder) -> None:
        raise Started(dict(builder._options))

    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", start)

    def found(start_session: Any, **arguments: Any) -> dict[str, str]:
        with pytest.raises(Started) as raised:
            start_session(**arguments)
        given: dict[str, str] = raised.value.args[0]
        return given

    return found


def test_a_users_session_leaves_the_ui_to_spark(settings_of: Any) -> None:
    assert "spark.ui.enabled" not in settings_of(make_session, master="local[1]")


def test_a_command_has_no_ui(settings_of: Any) -> None:
    assert settings_of(started, master="local[1]")["spark.ui.enabled"] == "false"
