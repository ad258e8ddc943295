"""Checks resources, points, spans and events, and removes what breaks a rule."""
