"""A disk, an index and a metadata store that lose power, and campaigns that make them."""
