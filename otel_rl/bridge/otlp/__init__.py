"""OTLP as the bridge reads it: what receive and decode must understand in the same way."""
