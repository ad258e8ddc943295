"""OTLP decoding: the interpretation of OTLP that receive and rows share."""
