"""Parts of a round of the row processor: loaded runs, reading, committing, troubles."""
