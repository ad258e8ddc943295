"""Input of a diagnosis: stored records, and the series of a run over its steps."""
