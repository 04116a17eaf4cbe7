"""The opt-in log of every delivery."""
