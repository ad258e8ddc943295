"""TLS, bearer tokens, and files that hold secrets."""
