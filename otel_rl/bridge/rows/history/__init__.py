"""Keeps spans and past steps of a run, and explains where the time of each step went."""
