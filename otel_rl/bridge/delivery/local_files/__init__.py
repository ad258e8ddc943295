"""Files of trackers: what was written is read back, and errors are the same for all."""
