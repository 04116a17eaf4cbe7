"""Topics to Parquet, and back to any broker."""
