"""Runs a scenario: a broker, producers and consumers, steps, and notes of all that was seen.

`run.py` puts the parts together. A `Target` (`target.py`) is the broker: a child process of our own that can
be killed and started again, or one that runs already, of which only what the protocol and the admin API offer
can be asked. `producing.py` and `consuming.py` are clients that come back whatever happens to their
connections; `doing.py` does the scenario's steps; `sampling.py` looks at the broker a few times a second, and
`probing.py` at how far the machine holds up the run.
All of them note into one `History`, which `checking` judges afterwards.

Must not be broken: a client notes what it did before it could know the outcome (sent, then confirmed), and
when a delivery arrived, not when it was worked on; otherwise the checker would judge by the client's haste.
"""
