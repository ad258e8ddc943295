"""Turns of experiments: how long each lasts, in which order they come, how much each takes."""
