"""Files of trackers: reading back, errors, and the mark of the journal."""
