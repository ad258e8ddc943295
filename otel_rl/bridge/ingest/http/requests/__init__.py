"""Requests with OTLP over HTTP: read, recognised, stored and answered."""
