"""End of a bridge inside a command: what is written, what is left, and what was lost."""
