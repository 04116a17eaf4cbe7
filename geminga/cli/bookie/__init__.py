"""`geminga bookie`: a stopped broker's files: list, dump, verify, rebuild."""
