"""Geminga: a message broker that speaks Apache Pulsar's protocol."""

__version__ = "0.1.0"
