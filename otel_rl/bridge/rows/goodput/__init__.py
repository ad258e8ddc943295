"""Goodput of a run: what the time of its allocation was worth. ADR 23."""
