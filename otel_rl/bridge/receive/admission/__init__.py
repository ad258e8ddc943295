"""Admission control: bounds on memory, threads, connections, experiments and token shares."""
