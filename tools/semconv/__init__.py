"""Makes the names and instruments of ``otel_rl/semconv`` and their page from its registry."""
