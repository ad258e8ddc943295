"""Ownership of runs where several bridges share a journal."""
