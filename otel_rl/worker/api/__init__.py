"""Public functions of a worker, as exported by ``otel_rl``."""
