"""How far a micro-batch of a stream reads: ledgers, samples of entries, limits, lag.

`Ledgers` (`ledgers.py`) finds how long the ledgers between two message ids are, by the admin API or by asking
for the last entry before each ledger, which reads no messages. A `Window` (`windows.py`) counts the entries
between two message ids. `samples.py` estimates from the metadata of single entries how many rows and bytes a
window has and how far a limit reaches into it; `sampling.py` decides which entries to look at. `waiting.py`
delays a micro-batch until there are enough rows, and lets brokers rest between triggers that find nothing;
`lag.py` computes how far behind a query is.

It exists apart from `topics` so that what a limit admits can be tested without a broker: windows, samples,
waiting and lag are pure. A driver that admits a micro-batch must not read what its workers will read.

Must not be broken: each trigger with something to read makes progress; the driver looks at no more than one
entry in a hundred that it admits, one for a partition of which it knows nothing; ledgers that are closed
never change their length, so the same two offsets give the same window.
"""
