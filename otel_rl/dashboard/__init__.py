"""Arranges the keys of a run into sections of panels, for any tracker or page."""
