"""One worker from its start to its last export, and what outlives it in the process."""
