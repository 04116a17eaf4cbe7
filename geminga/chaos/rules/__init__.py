"""Rules of faults: what a rule says, whether it is valid, and when it takes effect.

`rule.py` has the fields of a rule and checks one that a user sends. `places.py` lists the places, their kinds
of faults, and the fields that each kind takes; `can_hit.py` says which operations a kind can hit.
`deciding.py` decides, from the armed rules of a place, the facts of one operation and the time, which rules
take effect. A probability draws from the rule's own seeded generator, so a rule with the same seed makes the
same decisions for the same operations.

`faults.py` keeps the rules of a running broker: it arms, counts, ends and clears them. Each place is a
`Door` there. The code of a place asks its door at each operation, and a door without rules answers by an
empty tuple: `if door.armed:` is all that an operation without rules costs.

`rule_file.py` reads the rules that a start is given (`--fault FILE`), `kept_file.py` those that an earlier
process has kept: both are in force before anything is opened.

`killing.py` ends the process at a named point. Read `Faults` first. Doors are asked on any thread.
"""
