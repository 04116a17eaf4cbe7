"""A client's socket, its session, a handler for each command."""
