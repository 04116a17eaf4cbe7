"""What the admin API needs of the broker."""
