"""`geminga pipeline`: audit, export, replay, rescue, rebuild, capacity."""
