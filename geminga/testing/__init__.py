"""The test kit: a broker whose clock a test moves and whose parts it breaks, for the tests of applications.

`pip install geminga[testing]` is all that a project needs: pytest finds `plugin.py` by its entry point. A
test takes the fixture `geminga_tenant`, a `Tenant` (`tenant.py`, the class to read first): names of topics
that no other test uses, and `advance`, `drain`, `lose_bucket`, `set_fault`, `peek`, `assert_delivered`.
Behind it is one broker for the session, or for each worker of xdist, as a child process
(`geminga/child_broker.py`) with a virtual clock and with faults allowed. `requests.py` asks its admin API;
nothing here imports a Pulsar client, so any client and any kind of test (plain, asyncio, trio) goes with it.

`running.py` has the broker in the program's own process, on a thread, for those that want no child.

Must not be broken: what one test does to its topics no other test sees. Only the clock is shared, and it only
goes forward. It begins 20 years ahead of the machine's, so that no moment of one is taken for the other's.
"""
