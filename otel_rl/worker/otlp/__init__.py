"""Encodes measurements, spans and events as OTLP requests."""
