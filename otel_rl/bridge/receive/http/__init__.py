"""OTLP/HTTP: the application, its server, its listener and its protocol limits."""
