"""Finds experiment, role, index and name of a worker from arguments, environment and launcher."""
