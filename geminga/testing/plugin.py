"""The pytest plugin: `geminga_tenant`, a tenant of its own for each test, `geminga_async_tenant`, the same to
be awaited, and `geminga_broker` behind them.

Nothing is started before a test asks for one of them, so a project that has the plugin installed pays nothing
for it. Settings of the broker: override the fixture `geminga_settings`; a broker that runs already: override
`geminga_broker` (`connected.py`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import count
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from geminga.child_broker import ChildBroker
    from geminga.testing.async_tenant import AsyncTenant
    from geminga.testing.connected import ConnectedBroker
    from geminga.testing.tenant import Tenant

ARGUMENTS = ("--clock", "virtual", "--chaos")
LOG_SHOWN = 4000
"""Bytes of the broker's log that a failed test shows."""
_names = (f"test-{os.urandom(4).hex()}-{number}" for number in count(1))
"""Sessions and workers may share a broker."""
_tenant = pytest.StashKey["Tenant"]()


@pytest.fixture(scope="session")
def geminga_settings() -> Mapping[str, str]:
    """Keys of broker.conf for the broker of this session: delayed messages come exactly in time."""
    return {"isDelayedDeliveryDeliverAtTimeStrict": "true"}


@pytest.fixture(scope="session")
def geminga_broker(geminga_settings: Mapping[str, str]) -> Iterator[ChildBroker | ConnectedBroker]:
    """A broker for the session, or for one worker of xdist: with a virtual clock, faults allowed. The one
    that GEMINGA_SERVICE_URL and GEMINGA_WEB_URL name, where they are set.
    """
    from geminga.child_broker import ChildBroker
    from geminga.testing.connected import connected, set_ahead

    service_url, web_url = (os.environ.get(f"GEMINGA_{name}_URL") for name in ("SERVICE", "WEB"))
    if service_url:
        # The other one alone is the command line's, and names no broker for tests.
        if not web_url:
            raise ValueError("GEMINGA_SERVICE_URL is set: set GEMINGA_WEB_URL as well, or neither")
        yield connected(service_url, web_url)
        return
    with ChildBroker(settings=geminga_settings, arguments=ARGUMENTS) as broker:
        set_ahead(broker.web_url)
        yield broker


@pytest.fixture
def geminga_tenant(
    geminga_broker: ChildBroker | ConnectedBroker, request: pytest.FixtureRequest
) -> Iterator[Tenant]:
    """A tenant of its own: its topics are deleted after the test, connected clients or not."""
    from geminga.testing.tenant import Tenant

    tenant = Tenant(geminga_broker, next(_names))
    request.node.stash[_tenant] = tenant
    yield tenant
    tenant.close()


@pytest.fixture
def geminga_async_tenant(geminga_tenant: Tenant) -> AsyncTenant:
    """`geminga_tenant`, to be awaited by tests of asyncio and trio."""
    from geminga.testing.async_tenant import AsyncTenant

    return AsyncTenant(geminga_tenant)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Iterator[None]:  # the report is the generator's value
    """Add what the broker knows of the test's topics to the report of a failed test."""
    report = yield
    tenant = item.stash.get(_tenant, None)
    if report.when == "call" and report.failed and tenant is not None:  # type: ignore[attr-defined]
        report.sections.append(("geminga", _report(tenant, item)))  # type: ignore[attr-defined]
    return report


def _report(tenant: Tenant, item: pytest.Item) -> str:
    from geminga.errors import GemingaError

    try:
        text = tenant.report()
    except (GemingaError, OSError) as error:
        text = f"the broker does not answer: {error}"
    return f"{text}\n\nthe end of the broker's log:\n{tenant.log[-LOG_SHOWN:]}"
