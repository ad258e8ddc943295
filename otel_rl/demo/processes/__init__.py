"""Processes of the demo, one file each."""
