"""A disk, an index and a metadata store that lose power, and campaigns that make them.

A case builds a world on a `SimDisk` (`disk`), runs a script or a random life of a bookie (`bookie`) or of a
topic (`topic`) on it, cuts the power or fails an operation at a chosen point (`campaign/breaking.py`), opens
what is left, and holds it against the promises that were recorded outside. Read `disk/sim_disk.py` first for
the fault model, then `bookie/world.py`.

The code under test is the product's, unchanged: `storage.disk.Disk` and `storage.key_value.KeyValue` are the
seams. A case is a function of its name and seed, so a failure prints the command that runs it again. A real
kernel cannot be asked to tear a write at a sector; kill -9 tests (`tests/e2e`) cannot either, and complement
this.

Must not be broken: determinism (no threads, no wall clock, trio's scheduling by seed), and the rule that
checks know only what the product has promised, never how it works. Planted bugs
(`tests/chaos/planted_bugs.py`) show that the campaigns find what they are for.

It stands beside the package and is in no release; nothing in `geminga` imports it. Faults that a user can
switch on are `geminga/chaos`.
"""
