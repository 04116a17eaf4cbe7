"""Tenants, namespaces, and the policies of broker, namespace and topic: the stored and the effective ones.

`Policies.set_for_namespace` or `set_for_topic` takes a change, checks it (`table.py`, `values.py`) and
writes it to the record of the namespace or topic (`records.py`). Every affected loaded topic is notified
before the call returns. A topic makes no requests at run time: `Policies.attach` gives it an
`EffectivePolicies`, plain attributes. Read `Policies` in `policies.py` first; `Namespaces` has tenants and
namespaces.

A topic's value overrides its namespace's, which overrides the broker's, each policy by itself, as in Pulsar.
Values are stored as the JSON of the request, under Pulsar's keys, so that a policy without effect here is
still stored and returned. `table.py` has Pulsar 4.0.7's endpoints as recorded from it; readers are as
lenient as Jackson because tools rely on that.

`inert.py` has the policies without effect, `documents.py` other settings that are only stored,
`permissions.py` and `bundles.py` two members of a namespace's record.

Invariants: a change is durable and then in effect on return. Geminga accepts what Pulsar accepts, and
applies bounds where a value is used. Topic policies are records here rather than messages of a system topic
as in PIP-39, so that reading them loads no topic. Enforcing a policy belongs to `topic`, `subscription` and
`dispatch`; HTTP to `admin/routes`.
"""
