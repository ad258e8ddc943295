"""Prompts, admission, routing to replicas, and the buffer of finished samples."""
