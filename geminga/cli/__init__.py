"""The command line itself; `standalone`, `produce`, `consume`."""
