"""Faults that can be injected into a run of the demo."""
