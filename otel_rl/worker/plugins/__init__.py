"""Entry points through which OpenTelemetry loads otel_rl."""
