"""Values and requests of OTLP, for measurements, spans and events."""
