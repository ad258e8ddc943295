"""The bridge's database: accepted batches, rows, run state, and which bridge owns a run."""
