"""Snapshots of a broker's state as plain files: saved from a running broker, and put in place of its state.

`snapshots.py` is what the admin API calls, and the module to read first. A save asks `server/backup.py` for a
copy and writes `manifest.py`'s list of its files beside it. A restore copies and checks a snapshot into the
data directory, under `swap/incoming`, while the broker serves; a reset prepares nothing. Then the service
ends, the rooms close, `swap.py` moves the old state to `swap/outgoing` and the new one in, and the
composition root opens it on the same sockets: clients that connect meanwhile wait. `handover.py` carries the
wish from one opening to the next, and stops both.

Must not be broken: the old state is kept until the new one has opened, and the new one is committed before
the first client reaches it. A crash in between leaves one of them, whole; the next start settles which.
"""
