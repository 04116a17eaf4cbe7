"""What a chaos run is to do, what it has seen, and what follows from that. Pure.

`scenario.py` reads a scenario: the load, the steps, and what is expected. `load_plan.py` draws from the seed
what each producer sends. The run notes into a `History` (`history.py`) what was sent, confirmed, received and
acknowledged, and what was done to the broker; `history_file.py` makes lines of it and reads them.

`check.py` judges a history: what did not come, and with `deliveries.py` what came. `broker_time.py` turns the
machine's time into the broker's, which may have been moved; `machine.py` says what the machine held up.
`findings.py` has the words: wrong, late, not shown, passed. `report.py`, `picture.py` and `junit.py` tell it.

Nothing here knows how messages came or went, so that a history may be written by hand: the tests plant
losses, duplicates and early deliveries and see each found. Begin with `check.py`.
"""
