"""Diagnosis: analyses the spans and metrics of a run. Pure: no clock, no I/O."""
