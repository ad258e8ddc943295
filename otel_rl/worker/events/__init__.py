"""Events of a run: its metadata, its samples, and how a process ended."""
