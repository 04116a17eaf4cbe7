"""What a user may set: Pulsar's names, defaults and syntax; and the memory budget.

Settings come from defaults, a `broker.conf` (`file.py`: Java properties), the environment (plain or with
PULSAR_PREFIX_) and flags, the later one wins; `load` checks them all and returns a frozen `Config` with what
is to be reported, or raises a `ConfigError` with every problem. `memory_parts` divides the budget.
`server/room_settings.py` turns a `Config` into each room's settings. Read `Config` in `config.py`
and `load` in `loading.py` first, then `memory_budget.py`. `values.py` reads a text by a field's type,
`relations.py` checks fields against each other.

The names are Pulsar's so that an existing file starts this broker unchanged. A key that Pulsar knows and
Geminga does not serve is accepted and reported (`keys.py`, `foreign.py`, imported only when such a key
occurs); a key that is in neither is a mistake; a key that asks for protection which is not there is an error.

Must not be broken: nothing is silently wrong. A new setting needs Pulsar's name where there is one, its
default or a comment why not, and a row in docs/settings.md. The caches get BookKeeper's shares of the budget:
docs/memory.md. Fixed bounds are in `limits.py`; what is set for a namespace or topic at run time is in
`broker/policies`.
"""
