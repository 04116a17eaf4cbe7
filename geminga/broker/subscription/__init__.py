"""A subscription: its cursor, acknowledgements, expiry."""
