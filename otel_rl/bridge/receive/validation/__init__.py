"""Checks resources, points, spans and events, and removes those that break a rule."""
