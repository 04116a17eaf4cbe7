"""Jumps of a virtual clock: everything that falls due on the way happens, in due order, before a jump ends.

A request for a month comes in at `Jumps.to` (`jumps.py`, the class to read first). The target is made
durable, the clock stands still, and then it is moved from stop to stop; where it stands at the end is durable
before it ticks again. A stop is the next moment for which a dispatch task or a loader of buckets waits: both
leave an alarm with the clock when they go to sleep. Before a stop the periodic checks whose time has passed
run (`geminga/broker/topic/rounds.py`), so that a message that expires before it is due is not delivered. At a
stop the clock wakes the tasks, and the jump waits until they rest again (`geminga/clock.py`); a caller may
ask to wait until consumers have acknowledged what they got. `next_events.py` finds the moment for a jump to
the next event.

Must not be broken: the target is durable before the first move, or a crash in the middle of a jump would have
the clock go back behind stamps that it gave. That the jump is over is durable as well, or the next start
would go to its target once more. I/O time never jumps. Under the real clock nothing of this exists.
"""
