"""A blocking client of any Pulsar broker."""
