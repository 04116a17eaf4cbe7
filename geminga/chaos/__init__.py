"""Faults that a user may switch on: damage to buckets of a running broker (`--chaos`)."""
