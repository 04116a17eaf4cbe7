"""Payloads to typed columns and back, by schema."""
