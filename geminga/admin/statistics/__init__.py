"""Statistics in the shape and spelling of Pulsar's JSON."""
