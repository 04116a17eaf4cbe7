"""The user's settings, with Pulsar's names, defaults and syntax; and the memory budget.

Settings come from defaults, a `broker.conf` (`file.py`: Java properties), the environment (plain or with
PULSAR_PREFIX_) and flags; later ones override earlier ones. `load` checks them all. It returns a frozen
`Config` with notices to log, or raises a `ConfigError` with every problem. `memory_parts` divides the
budget. `server/room_settings.py` turns a `Config` into each room's settings. Read `Config` in `config.py`
and `load` in `loading.py` first, then `memory_budget.py`. `values.py` reads a text by a field's type,
`relations.py` checks fields against each other.

The names are Pulsar's so that an existing file starts this broker unchanged. A key that Pulsar knows and
Geminga does not serve is accepted and reported (`keys.py`, `foreign.py`, imported only when such a key
occurs). A key in neither list is an error, and so is a key that requests protection which Geminga lacks.

Invariants: nothing is silently wrong. A new setting needs Pulsar's name if Pulsar has one, its default or a
comment with the reason for another, and a row in docs/settings.md. The caches get BookKeeper's shares of the
budget: docs/memory.md. Fixed bounds are in `limits.py`; run-time policies of namespaces and topics are in
`broker/policies`.
"""
