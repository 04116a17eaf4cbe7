"""Tenants, namespaces, policies, and what holds for a topic."""
