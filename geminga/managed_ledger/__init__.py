"""A topic's storage: its life, its metadata record, its cursors."""
