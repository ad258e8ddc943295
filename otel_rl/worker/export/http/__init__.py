"""Clients of HTTP/1.1 for exports: a small one of our own, and one by requests."""
