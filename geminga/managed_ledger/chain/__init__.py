"""A chain of ledgers as one endless log: appending, reading, tail cache."""
