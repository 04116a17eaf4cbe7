"""The only doors to files (`disk.py`) and to RocksDB (`key_value.py`)."""
