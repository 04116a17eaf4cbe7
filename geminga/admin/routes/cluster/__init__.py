"""Routes of the one cluster: its broker, its figures, its bookie, and what is said of other clusters.

`brokers.py` has health, versions and the configuration, dynamic settings included; `broker_stats.py` the
figures of Pulsar's older monitoring; `clusters.py` clusters, failure domains and isolation policies;
`resources.py` racks, resource groups and quotas. Read `brokers.py` first.

Most of it has no meaning in one process. Set-up scripts and operators' tools send it all the same, so it is
checked as Pulsar does, kept as a document (`broker/policies/documents.py`), shown, and named as without
effect by a `Warning` header (`routes/effect.py`).

Must not be broken: nothing is answered with success and forgotten. What a setting does belongs to
`broker/operator/dynamic_configuration.py`, policies of namespaces to `routes/policies.py`.
"""
