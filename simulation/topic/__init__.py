"""Simulation: see simulation/__init__.py."""
