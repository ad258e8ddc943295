"""Exporter thread, with its send queues and its connections."""
