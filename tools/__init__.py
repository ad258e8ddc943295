"""Programs for those who change otel_rl; none is in the wheel."""
