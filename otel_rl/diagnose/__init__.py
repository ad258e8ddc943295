"""From the spans of a run to what its steps waited for. Pure: no clock, no I/O."""
