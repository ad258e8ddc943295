"""Detectors, one file for each family of faults."""
