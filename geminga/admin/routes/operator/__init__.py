"""Routes under `/geminga/` for what only an operator of the broker may do.

They break things on purpose (`faults.py`), move a virtual clock (`clock.py`), name directories of the
broker's machine (`backup.py`), or tell what happens to any topic (`events.py`). Each asks `OperatorGate`
(`operator_gate.py`) first: a request over loopback may go on, one from beyond it needs the operator's bearer
token. Then it parses what it was asked, calls the broker's part behind `admin.view`, and answers JSON.

Begin with `OperatorGate`; a new route that changes more than a topic's own state belongs here.
"""
