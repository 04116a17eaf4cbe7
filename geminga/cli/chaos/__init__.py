"""`geminga chaos`: break a broker on purpose under load, and prove afterwards that nothing was lost.

`chaos.py` is the command. It reads a scenario, one of those that are shipped (`shipped/`) or a
user's file, has `running/` run it against a broker, has `checking/` judge what was seen,
and writes the report. The checker is outside the broker and shares no code with it but the protocol's
encoders: what the broker believes of itself is not asked.

Must not be broken: a run is repeated by its seed (messages, keys, delays, faults are drawn from it; what the
machine does in between is not), and a broker that was started for a run is stopped with it, whatever happens.
"""
