"""A small client of any Pulsar broker."""
