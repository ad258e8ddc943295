"""Takes decoded points into the open rows of a run."""
