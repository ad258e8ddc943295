"""Reads request bodies within bounds: message counts, OTLP/JSON, the readable part of a body."""
