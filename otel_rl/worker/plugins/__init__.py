"""Entry points through which OpenTelemetry and imported frameworks load otel_rl."""
