"""Formats of the data in the journal, explicit and versioned."""
