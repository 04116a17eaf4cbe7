"""The routes of the web port: one class for each kind of object, put together in `admin/api/table.py`.

A class registers its patterns in `add_to`; a handler reads path, query and body of the `Request`, calls the
parts of the `BrokerView` that the table has passed to its class, and returns a `Response`. `names.py` checks
names, `addresses.py` has the broker's addresses for answers. Read `topics.py` and `subscriptions.py`;
policies are generated from the rows of `broker/policies/table.py` rather than written one by one, since
Pulsar has dozens with the same three verbs.

Pulsar's counterparts are its `admin/v2` resources (PersistentTopics, Namespaces, Tenants, Schemas). Where
Pulsar answers oddly (a TTL in the query, a number as a body, different texts for one error), the route does
the same: admin clients and the recorded tests of `tests/e2e` depend on it. Paths below `/geminga` are our
own: the delayed index, and policies that Pulsar does not have.

Must not be broken: handlers keep no state and decide no rule; a partition has no policies of its own; a topic
that is merely asked about is not created. What takes long to import (prometheus-client) is imported by the
first request that needs it. The command line's side of the same API is in `cli/admin`.
"""
