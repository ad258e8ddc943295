"""Formats of what the journal keeps, explicit and versioned."""
