"""What an operator sees of the broker and may change."""
