"""The bridge: OTLP in, one tracker run per experiment out."""
