"""Tenants, namespaces, and the policies of broker, namespace and topic: what is set, and what holds.

A change comes to `Policies.set_for_namespace` or `set_for_topic`, is checked (`table.py`, `values.py`),
written to the record of the namespace or topic (`records.py`), and every loaded topic that it concerns has
been told when the call returns. A topic asks nothing at run time: `Policies.attach` gives it an
`EffectivePolicies`, plain attributes. Read `Policies` in `policies.py` first; `Namespaces` has tenants and
namespaces.

A topic's value wins over its namespace's, that over the broker's, each policy by itself, as in Pulsar. Values
are kept as the JSON that came in, under Pulsar's keys, so that a policy this broker does not act upon is
still stored and returned. `table.py` holds Pulsar 4.0.7's endpoints as it answered them; readers are as
lenient as Jackson because tools rely on it.

`inert.py` has the policies that nothing goes by, `documents.py` what is set beside policies and kept only,
`permissions.py` and `bundles.py` two members of a namespace's record.

Must not be broken: durable and in effect on return, in this order; what Pulsar accepts is accepted, and
bounds are applied where a value is used. Topic policies are records here rather than messages of a system
topic as in PIP-39, so that no topic has to be loaded to know them. Acting on a policy belongs to `topic`,
`subscription` and `dispatch`; HTTP to `admin/routes`.
"""
