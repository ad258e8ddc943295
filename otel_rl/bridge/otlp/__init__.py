"""OTLP decoding: the interpretation of OTLP that ingest and rows share."""
