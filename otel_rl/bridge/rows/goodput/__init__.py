"""Goodput of a run: the time of its allocation in four parts. ADR 23."""
