"""Routes of tenants and namespaces: made, listed and deleted, and what they have beside their policies.

`tenants.py` and `namespaces.py` are the life of both; `namespace_fields.py` has properties, permissions,
clusters and affinity, all members of the namespace's record; `namespace_actions.py` does one thing to every
topic of a namespace or of a bundle. Read `namespaces.py` first.

Policies are not here but generated from rows (`routes/policies.py`). Pulsar's counterparts are the resources
Tenants and Namespaces of `admin/v2`, whose statuses and texts these routes share.

Must not be broken: a change is one versioned write of the record (`Namespaces.change_policies`), durable when
it is answered; an action over many topics lets other tasks run between two of them. Rules about names and
clusters belong to `broker/policies/namespaces.py`, permissions to `broker/policies/permissions.py`.
"""
