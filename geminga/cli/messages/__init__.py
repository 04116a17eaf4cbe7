"""Messages on the command line: produce, consume, read and peek, and what pulsar-client calls so.

`produce.py` makes bodies of its flags (`bodies.py`) and sends them; `consume.py` and `read.py` open
consumers or readers and hand them to a `Receiving` (`receiving.py`), which prints and acknowledges;
`peek.py` reads what a subscription has not acknowledged, without consuming it. `values.py` decodes payloads
by the schema that each message names, `printing.py` writes them out. Read `receiving.py` first.

The flags are pulsar-client's, beside our own longer ones. Where a default of pulsar-client would surprise,
the commands differ in their `Dialect` (`dialect.py`): `geminga pulsar-client consume` ends after one message
and prints as pulsar-client does, `geminga consume` goes on and prints payloads. Messages are split at commas
for pulsar-client only.

Must not be broken: a message is on standard output before it is acknowledged; of a batch only what was
printed is; `-n` is exact, also within a batch; a command that was to receive and got nothing, or less than
was asked for, says so with its exit code.
"""
