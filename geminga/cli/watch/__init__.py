"""What a broker does right now: `geminga top` and `geminga status`.

`top.py` shows topics live: `view.py` is what is on the screen and what each key does to it, without a
terminal; `terminal.py` has the terminal itself, and leaves it as it found it. `status.py` tells what runs,
where its data are and what is wrong, `places.py` looks at a data directory, served or stopped. The figures
come from `cli/figures`. Read `view.py` first.

Must not be broken: looking costs the broker one page of metrics a round, and a round is never shorter than
ten times what a page took; nothing is written, no topic is loaded or made, a stopped directory is not
opened. In a pipe there is one plain snapshot. Names come from clients: they reach the terminal through
`cli/show` only.
"""
