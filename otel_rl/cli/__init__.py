"""The ``otel-rl`` command."""
