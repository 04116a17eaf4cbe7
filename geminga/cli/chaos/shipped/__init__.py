"""The scenarios that come with Geminga: a TOML file each, which users may copy and change.

`scenarios.py` finds them by name. The first comment of each says what it shows; `docs/chaos.md` lists them
and explains the fields. Each passes on Geminga, in the tests with few messages and by `geminga chaos run`
with any number. Those with `threads` are about a defect of Pulsar's tracker and name where it is discussed;
they fail on a real broker that has it.

A scenario is data: nothing in it may need code of its own, so that users can write what we can write. Begin
with `bucket-loss.toml`.
"""
