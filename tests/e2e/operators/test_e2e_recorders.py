"""Recorders refuse a Geminga; tests play recordings against brokers with the same settings."""

from __future__ import annotations

from typing import Any

import pytest

from tests.broker.topic import lifetime_recording
from tests.e2e.admin_http import Admin
from tests.e2e.broker_process import Endpoints
from tests.e2e.operators import policy_recording, schema_recording
from tests.recordings.real_broker import different_settings


@pytest.mark.geminga_only
@pytest.mark.parametrize("recorder", [policy_recording, schema_recording, lifetime_recording])
def test_a_geminga_is_asked_nothing_and_nothing_is_written(
    broker: Endpoints, admin: Admin, recorder: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    before = recorder.RECORDING.path.read_bytes(), admin.get("/admin/v2/namespaces/public").json()
    with pytest.raises(SystemExit) as stopped:
        recorder.main([broker.service_url, broker.web_url])
    assert stopped.value.code == 2
    assert "geminga" in capsys.readouterr().err
    after = recorder.RECORDING.path.read_bytes(), admin.get("/admin/v2/namespaces/public").json()
    assert after == before


@pytest.mark.parametrize("recorder", [policy_recording, schema_recording])
def test_the_broker_under_test_has_the_settings_of_the_recording(admin: Admin, recorder: Any) -> None:
    configuration = admin.get("/admin/v2/brokers/configuration/runtime").json()
    known = {
        key: value
        for key, value in recorder.RECORDING.read().settings.items()
        if key in configuration and value  # an empty value stands for a default, which Geminga writes out
    }
    assert len(known) > 5
    assert different_settings(known, configuration) == []
