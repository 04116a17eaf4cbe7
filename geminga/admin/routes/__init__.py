"""The routes of REST v2: paths and bodies in, calls to the broker, answers out."""
