"""What a user may set, by Pulsar's names; the memory budget."""
