"""A program's names, and OTLP requests as its SDK makes them."""
